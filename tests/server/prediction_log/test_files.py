"""Files by hour are bounded in number and age."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.prediction_log.log_format import FEEDBACK, REQUESTS
from polyrec.server.prediction_log.files import PartFiles, label_files, remove_old

NOON_S = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()


def label(hour: float, row: int = 0) -> dict[str, object]:
    return {"request_id": "r", "row": row, "label": 1.0, "time": int(1e6 * (NOON_S + 3600 * hour))}


def hours(folder: Path, kind: str = FEEDBACK) -> list[str]:
    return sorted(hour.name for hour in (folder / kind).iterdir())


def test_rows_are_in_the_folder_of_their_hour(tmp_path: Path) -> None:
    files = label_files(tmp_path)
    for hour in (0, 0.99, 1):
        files.add([label(hour)])
    assert files.flush() == (3, 0)
    assert hours(tmp_path) == ["2026-11-23T12", "2026-11-23T13"]
    (first,) = (tmp_path / FEEDBACK / "2026-11-23T12").iterdir()
    assert pq.read_table(first).num_rows == 2


def test_nothing_is_written_twice_and_no_partial_file_stays(tmp_path: Path) -> None:
    files = label_files(tmp_path)
    files.add([label(0)])
    assert files.flush() == (1, 0)
    assert files.flush() == (0, 0)
    files.add([label(0)])
    files.flush()
    names = [file.name for file in (tmp_path / FEEDBACK / "2026-11-23T12").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("part-") and name.endswith(".parquet") for name in names)


def test_a_file_is_on_disk_when_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def recorded(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    files = label_files(tmp_path)
    files.add([label(0)])
    files.flush()
    (part,) = (tmp_path / FEEDBACK / "2026-11-23T12").iterdir()
    assert part.stat().st_ino in synced


def test_the_log_tells_when_records_are_lost_and_when_they_are_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = label_files(tmp_path)
    (tmp_path / FEEDBACK).touch()  # no folder can be made there by any user
    for _ in range(2):
        files.add([label(0)])
        assert files.flush() == (0, 1)
    (tmp_path / FEEDBACK).unlink()
    for _ in range(2):
        files.add([label(0)])
        assert files.flush() == (1, 0)
    lost, again = caplog.messages
    assert "are lost" in lost
    assert again.endswith("are written again; 2 were lost")


def test_values_that_do_not_fit_their_column_are_missing_and_no_record_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = pa.schema(
        [
            ("time", pa.timestamp("us", tz="UTC")),
            ("one", pa.int64()),
            ("many", pa.list_(pa.int64())),
            ("bags", pa.list_(pa.list_(pa.int64()))),
        ]
    )
    files = PartFiles(tmp_path / REQUESTS, columns, "time")
    at = int(1e6 * NOON_S)
    files.add([{"time": at, "one": 1, "many": [1, 2], "bags": [[1], [2]]}])
    files.add([{"time": at, "one": 2**63, "many": [1, -(2**70)], "bags": [[2**64, 1], None]}])
    files.add([{"time": at, "one": -(2**63), "many": None, "bags": [[2**63 - 1]]}])
    assert files.flush() == (3, 0)
    (part,) = (tmp_path / REQUESTS / "2026-11-23T12").iterdir()
    found = pq.read_table(part)
    assert found["one"].to_pylist() == [1, None, -(2**63)]
    assert found["many"].to_pylist() == [[1, 2], [1, None], None]
    assert found["bags"].to_pylist() == [[[1], [2]], [[None, 1], None], [[2**63 - 1]]]
    assert not caplog.messages


def test_a_file_that_cannot_get_its_name_leaves_nothing(tmp_path: Path) -> None:
    files = label_files(tmp_path)
    files.add([label(0)])
    files.flush()
    (first,) = (tmp_path / FEEDBACK / "2026-11-23T12").iterdir()
    taken = first.with_name(first.name.replace("-000001-", "-000002-"))
    taken.mkdir()
    files.add([label(0)])
    assert files.flush() == (0, 1)
    assert {*first.parent.iterdir()} == {first, taken}


@pytest.mark.parametrize(
    ("keep_h", "max_bytes", "left"),
    [
        (100, None, [0, 1, 2, 3]),
        (2, None, [1, 2, 3]),
        (100, 1, [3]),
        (1.5, None, [1, 2, 3]),
        (3, None, [0, 1, 2, 3]),
    ],
)
def test_old_hours_are_removed(tmp_path: Path, keep_h: float, max_bytes: int | None, left: list[int]) -> None:
    files = label_files(tmp_path)
    for hour in range(4):
        files.add([label(hour)])
    files.flush()
    (tmp_path / REQUESTS / "mine").mkdir(parents=True)
    remove_old(tmp_path, keep_h, max_bytes, NOON_S + 3.2 * 3600)
    assert hours(tmp_path) == [f"2026-11-23T{12 + hour}" for hour in left]
    assert hours(tmp_path, REQUESTS) == ["mine"]


def test_a_clock_that_is_wrong_for_a_moment_costs_an_hour(tmp_path: Path) -> None:
    files = label_files(tmp_path)
    for hour in range(4):
        files.add([label(hour)])
    files.flush()
    right_s, year_s = NOON_S + 3.2 * 3600, 365 * 24 * 3600.0
    for at_s, left in ((right_s, 4), (right_s + year_s, 3), (right_s, 3), (right_s + year_s, 2)):
        remove_old(tmp_path, 100, None, at_s)
        assert len(hours(tmp_path)) == left


def test_an_hour_that_is_larger_than_the_log_may_be_loses_its_oldest_files(tmp_path: Path) -> None:
    files = label_files(tmp_path)
    for row in range(6):
        files.add([label(3, row)])
        files.flush()
    hour = tmp_path / FEEDBACK / "2026-11-23T15"
    parts = sorted(hour.iterdir(), key=lambda file: int(file.name.split("-")[2]))
    for i, part in enumerate(parts):
        os.utime(part, (NOON_S + i, NOON_S + i))
    max_bytes = sum(part.stat().st_size for part in parts[3:])
    remove_old(tmp_path, 100, max_bytes, NOON_S + 3.2 * 3600)
    assert {*hour.iterdir()} == {*parts[3:]}


def test_a_file_that_is_larger_than_the_log_may_be_is_removed_in_its_hour(tmp_path: Path) -> None:
    files = label_files(tmp_path)
    files.add([label(3)])
    files.flush()
    (part,) = (tmp_path / FEEDBACK).rglob("*.parquet")
    for max_bytes, stays in ((part.stat().st_size, True), (part.stat().st_size - 1, False)):
        remove_old(tmp_path, 100, max_bytes, NOON_S + 3.2 * 3600)
        assert part.exists() == stays


def test_an_hour_that_grows_fast_keeps_earlier_ones(tmp_path: Path) -> None:
    """A client with long values filled a log, and the hours of others went first, oldest to newest."""
    files = label_files(tmp_path)
    for hour in range(3):
        files.add([label(hour)])
        files.flush()
    earlier = sorted((tmp_path / FEEDBACK).rglob("*.parquet"))
    for row in range(40):
        files.add([label(3, row)])
        files.flush()
    max_bytes = 20 * earlier[0].stat().st_size
    remove_old(tmp_path, 100, max_bytes, NOON_S + 3.2 * 3600)
    assert all(file.exists() for file in earlier)
    left = sum(file.stat().st_size for file in (tmp_path / FEEDBACK).rglob("*.parquet"))
    assert max_bytes / 2 < left <= max_bytes


def test_files_of_an_hour_that_was_trimmed_count_once(tmp_path: Path) -> None:
    """A clock that was ahead left hours that have not ended, each with more than its share."""
    files = label_files(tmp_path)
    for hour in range(3, 9):
        for row in range(4):
            files.add([label(hour, row)])
            files.flush()
    sizes = [file.stat().st_size for file in (tmp_path / FEEDBACK).rglob("*.parquet")]
    max_bytes = sum(sizes) // 3
    remove_old(tmp_path, 100, max_bytes, NOON_S + 3.2 * 3600)
    left = sum(file.stat().st_size for file in (tmp_path / FEEDBACK).rglob("*.parquet"))
    assert max_bytes / 2 < left <= max_bytes
