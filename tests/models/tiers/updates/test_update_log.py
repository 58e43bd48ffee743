"""The log of updates: what was synced is read again whatever happens to the rest of the file."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyrec.models.tiers.updates import update_log as update_log_module
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.names import NamedId
from polyrec.models.tiers.updates.update import StoredTableUpdate
from polyrec.models.tiers.updates.update_log import MAGIC, Record, UpdateLog, UpdateLogError, record_of
from tests.models.tiers.updates.logged import WIDTH, reopened, rows_of, stored

ROOT = Path(__file__).parents[4]


UPDATES = st.lists(
    st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(0, 255)), max_size=12
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(updates=UPDATES, data=st.data())
def test_a_file_cut_or_torn_anywhere_keeps_every_whole_record(
    updates: list[tuple[list[int], int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("log") / "u"
    changes = Changes(file.parent / "values", UpdateLog(file))
    states, ends = [dict[int, bytes]()], [file.stat().st_size]
    for ids, value in updates:
        changes.apply(stored(ids, value))
        states.append(states[-1] | {i: bytes([value]) * WIDTH for i in ids})
        ends.append(file.stat().st_size)
    assert rows_of(changes) == states[-1]
    changes.close(remove=False)
    size = data.draw(st.integers(len(MAGIC), ends[-1]))
    os.truncate(file, size)
    garbage = data.draw(st.binary(max_size=40) | st.integers(1, 40).map(bytes))  # or zeros
    with file.open("ab") as f:
        f.write(garbage)
    whole = max(i for i, end in enumerate(ends) if end <= size)
    found = reopened(file)
    if found != states[whole]:
        # the garbage happened to be what was cut off
        content = file.read_bytes()
        assert found in states
        assert len(content) in ends
    assert reopened(file) == found
    # the rest is cut off, so that nothing of it follows a shorter record
    assert file.stat().st_size in ends


def test_a_repeated_key_is_applied_once_also_after_a_restart(tmp_path: Path) -> None:
    changes = Changes(tmp_path, UpdateLog(tmp_path / "u"))
    assert changes.apply(stored([1], 1), "first")
    assert changes.apply(stored([1], 2), "second")
    assert not changes.apply(stored([1], 1), "first")
    changes.close(remove=False)
    again = Changes(tmp_path, UpdateLog(tmp_path / "u"))
    assert not again.apply(stored([1], 1), "first")
    assert rows_of(again) == {1: bytes([2]) * WIDTH}
    again.close(remove=True)
    assert [p.name for p in tmp_path.iterdir()] == []


def test_superseded_records_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_log_module, "MIN_REWRITTEN_BYTES", 4096)
    file = tmp_path / "u"
    changes = Changes(tmp_path, UpdateLog(file))
    largest = 0
    for i in range(1000):
        changes.apply(stored([i % 20, 100], i % 256), f"key{i % 3}-{i}" if i % 50 == 0 else "")
        largest = max(largest, file.stat().st_size)
    assert largest < 8192
    expected = {i: bytes([(980 + i) % 256]) * WIDTH for i in range(20)} | {100: bytes([999 % 256]) * WIDTH}
    assert rows_of(changes) == expected
    changes.close(remove=False)
    assert reopened(file) == expected
    again = Changes(tmp_path, UpdateLog(file))
    assert not again.apply(stored([0], 0), "key0-0")
    again.close()


def test_waiting_callers_share_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes(tmp_path, UpdateLog(tmp_path / "u"))
    syncs, begun = [], threading.Event()
    actual = os.fdatasync

    def counted(fd: int) -> None:
        syncs.append(fd)
        begun.wait(20)
        actual(fd)

    monkeypatch.setattr(os, "fdatasync", counted)
    threads = [threading.Thread(target=changes.apply, args=(stored([i], i),)) for i in range(16)]
    for thread in threads:
        thread.start()
    while changes.rows < 16:
        pass
    begun.set()
    for thread in threads:
        thread.join()
    assert len(syncs) <= 3  # the first, those that came meanwhile, and perhaps one that was late
    changes.close()


@pytest.mark.parametrize("max_bytes", [11, 10_000])
@pytest.mark.parametrize("tables", [0, 1, 3, 700])
def test_a_record_in_the_file_is_what_msgpack_encodes_however_the_kernel_cuts_writes(
    tables: int, max_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(tables)
    update = {}
    for number in range(tables):
        count = int(random.integers(1, 4))
        values = random.integers(0, 256, (2 * count, WIDTH), np.uint8)
        # not contiguous
        update[f"table {number}"] = StoredTableUpdate(random.integers(0, 2**40, count), values[::2])
    names = {"table 0": [NamedId("Köln", 3, 1.5), NamedId(7, None)]}
    record = record_of("key", update, names)

    def short(fd: int, parts: Sequence[bytes], at: int) -> int:
        return os.pwrite(fd, b"".join(parts)[:max_bytes], at)

    monkeypatch.setattr(os, "pwritev", short)
    log = UpdateLog(tmp_path / "u")
    log.append(record)
    payload = (tmp_path / "u").read_bytes()[len(MAGIC) + 8 :]
    assert msgspec.msgpack.decode(payload) == msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    (again,) = log.replay()
    assert again.name_changes() == names
    assert again.updates().keys() == update.keys()
    for table, rows in again.updates().items():
        assert np.array_equal(rows.ids, update[table].ids)
        assert np.array_equal(rows.values, update[table].values)
    log.close()


def test_a_file_that_is_no_log_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "u"
    file.write_bytes(b"something else altogether\n")
    with pytest.raises(UpdateLogError, match="is not a log of updates"):
        reopened(file)
    file.write_bytes(MAGIC[:5])  # a crash while it was made
    assert reopened(file) == {}
    (tmp_path / "folder").mkdir()
    with pytest.raises(UpdateLogError, match="cannot be opened: Is a directory"):
        UpdateLog(tmp_path / "folder")
    first = UpdateLog(file)
    with pytest.raises(UpdateLogError, match="in use by another server"):
        UpdateLog(file)
    first.append(record_of("", stored([1], 1).rows))
    first.append(record_of("", {"t": StoredTableUpdate(np.array([1]), np.ones((1, 3), np.uint8))}))
    first.close()
    with pytest.raises(UpdateLogError, match="rows of another format"):
        reopened(file)
    file.write_bytes(MAGIC + b"\xff\xff\xff\x7f garbage")
    with caplog.at_level(logging.WARNING):
        assert reopened(file) == {}
    assert "bytes after the last whole record are cut off" in caplog.text


WRITER = """
import sys
from pathlib import Path
import numpy as np
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.update_log import UpdateLog
from polyrec.models.tiers.updates.update import StoredUpdate, StoredTableUpdate
folder = Path(sys.argv[1])
changes = Changes(folder, UpdateLog(folder / "u"))
i = 0
while True:
    table = StoredTableUpdate(np.array([i]), np.full((1, 12), i % 256, np.uint8))
    changes.apply(StoredUpdate({"t": table}), str(i))
    print(i, flush=True)
    i += 1
"""


def test_acknowledged_updates_survive_kill_9(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(200)]
    writer.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in writer.stdout.read().split()]
    writer.wait(20)
    writer.stdout.close()
    found = reopened(tmp_path / "u")
    assert acknowledged == list(range(len(acknowledged)))
    assert all(found[i] == bytes([i % 256]) * WIDTH for i in acknowledged)
    assert len(found) <= len(acknowledged) + 1


def test_a_record_that_would_be_read_as_torn_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrec.models.tiers.updates.update_log.MAX_RECORD_BYTES", 1000)
    update_log = UpdateLog(tmp_path / "log")
    update_log.append(Record("a" * 500, {}))
    with pytest.raises(OSError, match="at most 1000"):
        update_log.append(Record("b" * 1001, {}))
    update_log.append(Record("c", {}))
    update_log.close()
    again = UpdateLog(tmp_path / "log")
    assert [record.key[0] for record in again.replay()] == ["a", "c"]
    again.close()


def test_closing_answers_callers_that_wait_for_the_disk(tmp_path: Path) -> None:
    update_log = UpdateLog(tmp_path / "log")
    position = update_log.append(Record("a", {}))
    update_log.close()
    update_log.sync(position)


def test_bytes_after_a_damaged_record_are_saved_beside_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "u"
    changes = Changes(tmp_path, UpdateLog(file))
    ends = []
    for i in range(3):
        changes.apply(stored([i], i))
        ends.append(file.stat().st_size)
    changes.close(remove=False)
    damaged = bytearray(file.read_bytes())
    damaged[ends[0] + 12] ^= 1
    file.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert reopened(file) == {0: bytes([0]) * WIDTH}
    assert "kept in 'u.cut-1'" in caplog.text
    assert (tmp_path / "u.cut-1").read_bytes() == damaged[ends[0] :]
    with file.open("ab") as f:
        f.write(b"torn")
    with caplog.at_level(logging.WARNING):
        reopened(file)
    assert "kept in 'u.cut-2'" in caplog.text
    assert (tmp_path / "u.cut-1").read_bytes() == damaged[ends[0] :]
    assert (tmp_path / "u.cut-2").read_bytes() == b"torn"
    Changes(tmp_path, UpdateLog(file)).close(remove=True)
    assert not file.exists()
    assert not list(tmp_path.glob("u*"))


def test_cut_bytes_are_on_disk_before_the_log_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, calls = UpdateLog(tmp_path / "u"), list[tuple[str, str]]()
    os.pwrite(log._fd, b"torn", len(MAGIC))
    fsync, ftruncate = os.fsync, os.ftruncate

    def recorded_fsync(fd: int) -> None:
        calls.append(("fsync", Path(f"/proc/self/fd/{fd}").readlink().name))
        fsync(fd)

    def recorded_truncation(fd: int, length: int) -> None:
        calls.append(("ftruncate", Path(f"/proc/self/fd/{fd}").readlink().name))
        ftruncate(fd, length)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "ftruncate", recorded_truncation)
    assert not list(log.replay())
    log.close()
    written = [("fsync", "u.cut-1"), ("fsync", tmp_path.name), ("ftruncate", "u"), ("fsync", "u")]
    assert calls == written


def test_a_cut_that_cannot_be_kept_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = UpdateLog(tmp_path / "u")
    os.pwrite(log._fd, b"torn", len(MAGIC))

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with caplog.at_level(logging.WARNING):
        assert not list(log.replay())
    log.close()
    assert "not kept: No space left on device" in caplog.text
    assert not list(tmp_path.glob("u.cut*"))


def test_zeros_that_a_loss_of_power_leaves_are_no_record(tmp_path: Path) -> None:
    file = tmp_path / "u"
    changes = Changes(tmp_path, UpdateLog(file))
    changes.apply(stored([1], 1))
    changes.close(remove=False)
    with file.open("ab") as f:
        f.write(bytes(4096))
    assert reopened(file) == {1: bytes([1]) * WIDTH}


@pytest.mark.parametrize("written", range(len(MAGIC)))
def test_a_new_log_whose_first_bytes_a_loss_of_power_turned_into_zeros_is_begun_again(
    written: int, tmp_path: Path
) -> None:
    file = tmp_path / "u"
    file.write_bytes(MAGIC[:written].ljust(len(MAGIC), b"\0"))
    changes = Changes(tmp_path, UpdateLog(file))
    changes.apply(stored([1], 1))
    changes.close(remove=False)
    assert reopened(file) == {1: bytes([1]) * WIDTH}


def test_what_a_server_that_was_killed_while_it_rewrote_the_log_left_is_removed(tmp_path: Path) -> None:
    partial = tmp_path / "u.partial"
    partial.write_bytes(MAGIC)
    UpdateLog(tmp_path / "u").close()
    assert not partial.exists()


def test_a_lock_file_that_was_removed_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "u"
    first = UpdateLog(file)
    actual = update_log_module.fcntl.flock

    def late(fd: int, how: int) -> None:
        # between the opening of the lock file and its lock, the first server ends and a third begins
        first.close(remove=True)
        monkeypatch.setattr(update_log_module.fcntl, "flock", actual)
        third.append(UpdateLog(file))
        actual(fd, how)

    third: list[UpdateLog] = []
    monkeypatch.setattr(update_log_module.fcntl, "flock", late)
    with pytest.raises(UpdateLogError, match="in use by another server"):
        UpdateLog(file)
    third[0].append(Record("a", {}))
    third[0].close(remove=True)
