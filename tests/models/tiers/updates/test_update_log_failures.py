"""The log of updates on a disk that fails or is full: nothing acknowledged is lost, the rest is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from polyrec.models.tiers.updates import update_log as update_log_module
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.update import UpdateNotKept
from polyrec.models.tiers.updates.update_log import UpdateLog, UpdateLogError
from tests.models.tiers.updates.logged import WIDTH, reopened, rows_of, stored


def test_a_disk_that_failed_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes(tmp_path, UpdateLog(tmp_path / "u"))

    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with pytest.raises(UpdateNotKept, match="Input/output error"):
            changes.apply(stored([1], 1))
    with pytest.raises(UpdateNotKept, match="the disk failed"):
        changes.apply(stored([2], 2))
    assert changes.figures.failed == 2
    assert 2 not in rows_of(changes)
    changes.close()


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "u"
    changes = Changes(tmp_path, UpdateLog(file))
    changes.apply(stored([1], 1))
    before = file.read_bytes()

    def half(fd: int, parts: Sequence[bytes], at: int) -> int:
        content = b"".join(parts)
        if len(content) < 30:
            raise OSError(28, "No space left on device")
        return os.pwrite(fd, content[: len(content) - 20], at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", half)
        with pytest.raises(UpdateNotKept, match="No space left"):
            changes.apply(stored([2], 2))
    assert file.read_bytes() == before
    assert rows_of(changes) == {1: bytes([1]) * WIDTH}
    changes.apply(stored([3], 3))
    changes.close(remove=False)
    assert reopened(file) == {1: bytes([1]) * WIDTH, 3: bytes([3]) * WIDTH}


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize(
    "lose",
    [
        lambda file: file.rename(file.with_name("u.1")),
        lambda file: file.unlink(),
        lambda file: os.truncate(file, 0),
    ],
    ids=["moved", "removed", "truncated"],
)
def test_a_log_that_another_program_took_is_written_again(
    lose: Callable[[Path], object], again: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As logrotate does; at the next update or, without one, at the end."""
    file = tmp_path / "u"
    changes = Changes(tmp_path, UpdateLog(file))
    changes.apply(stored([1], 1), "first")
    lose(file)
    found = {1: bytes([1]) * WIDTH}
    if again:
        changes.apply(stored([2], 2))
        found[2] = bytes([2]) * WIDTH
        shutil.copy(file, tmp_path / "copy")
        assert reopened(tmp_path / "copy") == found
    changes.close(remove=False)
    assert caplog.messages == [f"'{file}' was moved, removed or truncated: it is written again"]
    assert reopened(file) == found
    after = Changes(tmp_path, UpdateLog(file))
    assert not after.apply(stored([1], 1), "first")
    after.close()


def held_open(folder: Path) -> list[str]:
    """Files of a folder that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(file for file in found if file.startswith(str(folder)))


def test_a_log_that_could_not_be_opened_leaves_nothing_open_and_can_be_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, parts: Sequence[bytes], at: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        with pytest.raises(UpdateLogError, match="cannot be opened: No space left"):
            UpdateLog(tmp_path / "u")
    assert not held_open(tmp_path)
    first = UpdateLog(tmp_path / "u")
    opened = held_open(tmp_path)
    with pytest.raises(UpdateLogError, match="in use"):
        UpdateLog(tmp_path / "u")
    assert held_open(tmp_path) == opened
    first.close()


def test_a_log_that_cannot_be_rewritten_loses_nothing_and_is_not_tried_at_every_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(update_log_module, "MIN_REWRITTEN_BYTES", 1024)
    file = tmp_path / "u"
    changes = Changes(tmp_path, UpdateLog(file))
    changes.apply(stored([1], 0))
    actual = os.open

    def no_folder(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECTORY:
            raise OSError(24, "Too many open files")
        return actual(path, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", no_folder)
        updates = 100
        while len(caplog.messages) < 2:
            changes.apply(stored([1], updates % 256))
            updates += 1
    assert "cannot be rewritten: Too many open files" in caplog.text
    assert updates > 110
    grown = file.stat().st_size
    with monkeypatch.context() as patched:
        patched.setattr(changes, "_compact", lambda: None)
        changes.apply(stored([2], 7))
    assert file.stat().st_size > grown  # of the file that has the name
    expected = {1: bytes([(updates - 1) % 256]) * WIDTH, 2: bytes([7]) * WIDTH}
    changes.close(remove=False)
    assert reopened(file) == expected
