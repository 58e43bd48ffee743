from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.criteo import CriteoReader
from polyrec.models.data.parquet import ParquetReader, open_parquet
from polyrec.models.data.reader import DataReader, open_data
from polyrec.models.data.split import fit_splitter
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema, Split, load_schema

Write = Callable[[Sequence[dict[str, Any]]], Path]


def test_the_content_decides_the_format(small: Schema, write: Write, tmp_path: Path) -> None:
    path = write([{"request": 1, "clicked": 1}])
    assert isinstance(open_data(path, small), ParquetReader)
    copy = tmp_path / "rows.tsv"
    copy.write_bytes(path.read_bytes())
    assert isinstance(open_data(copy, small), ParquetReader)
    assert isinstance(open_data(path.parent, small), ParquetReader)
    lines = tmp_path / "lines.tsv"
    lines.write_text("\t" * 39)
    assert isinstance(open_data(lines, load_schema("criteo")), CriteoReader)


def test_files_that_are_no_data_are_rejected(small: Schema, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data file"):
        open_data(tmp_path / "nothing.parquet", small)
    with pytest.raises(DataError, match="no data file"):
        open_parquet(tmp_path / "nothing.parquet")
    with pytest.raises(DataError, match=r"no \*.parquet file in"):
        open_data(tmp_path, small)
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(DataError, match="is empty"):
        open_data(tmp_path / "empty.tsv", small)
    (tmp_path / "rows.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"rows.csv' is not Parquet; of a CSV file make one: python -c"):
        open_data(tmp_path / "rows.csv", small)
    (tmp_path / "rows.csv.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match=r"rows.csv.gz' is not Parquet; .*rows.parquet"):
        open_data(tmp_path / "rows.csv.gz", small)
    (tmp_path / "rows.json").write_text("{}")
    with pytest.raises(DataError, match="neither Parquet nor a Criteo file"):
        open_data(tmp_path / "rows.json", small)


def test_a_fingerprint_is_of_the_bytes(small: Schema, write: Write, tmp_path: Path) -> None:
    path = write([{"request": 1, "clicked": 1}])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert open_data(path, small).fingerprint() == digest
    (tmp_path / "elsewhere.parquet").write_bytes(path.read_bytes())
    assert open_data(tmp_path / "elsewhere.parquet", small).fingerprint() == digest


def test_the_fingerprint_of_a_folder_knows_names_and_contents(
    small: Schema, write: Write, tmp_path: Path
) -> None:
    content = write([{"request": 1, "clicked": 1}]).read_bytes()
    (tmp_path / "a.parquet").write_bytes(content)
    one = open_data(tmp_path, small).fingerprint()
    (tmp_path / "notes.txt").touch()
    assert open_data(tmp_path, small).fingerprint() == one
    (tmp_path / "b.parquet").write_bytes(content)
    two = open_data(tmp_path, small).fingerprint()
    (tmp_path / "b.parquet").rename(tmp_path / "c.parquet")
    assert len({one, two, open_data(tmp_path, small).fingerprint()}) == 3


def timed(tmp_path: Path, type_: pa.DataType) -> tuple[Path, Schema]:
    """A row an hour from 2026-11-22 on, two days in two files; its label tells its number."""
    hours = [datetime(2026, 11, 22) + timedelta(hours=h) for h in range(48)]
    seconds = [int(h.replace(tzinfo=UTC).timestamp()) for h in hours]
    times = pa.array(seconds if type_ == pa.int64() else hours).cast(type_, safe=False)
    table = pa.table({"time": times, "item": ["a"] * 48, "clicked": [*range(48)]})
    for day in (0, 1):
        pq.write_table(table.slice(24 * day, 24), tmp_path / f"day-{day}.parquet")
    raw = {
        "name": "timed",
        "categorical": [{"name": "item"}],
        "label": {"column": "clicked"},
        "split": {"rule": "time", "columns": ["time"]},
    }
    return tmp_path, Schema.model_validate(raw)


def labels(reader: DataReader) -> list[int]:
    return [int(n) for data in reader.batches(["clicked"]) for n in data.column("clicked").to_pylist()]


@pytest.mark.parametrize("type_", [pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns", "UTC")], ids=str)
def test_a_period_is_read_of_a_column_of_times(tmp_path: Path, type_: pa.DataType) -> None:
    folder, schema = timed(tmp_path, type_)
    reader = open_data(folder, schema, since="2026-11-22T20:00", until="2026-11-23T03:00+02:00")
    assert labels(reader) == [20, 21, 22, 23, 24]
    assert labels(open_data(folder, schema, since="2026-11-23")) == [*range(24, 48)]


def test_a_period_is_read_of_days_and_of_numbers(tmp_path: Path) -> None:
    folder, schema = timed(tmp_path, pa.date32())
    assert labels(open_data(folder, schema, until="2026-11-23")) == [*range(24)]
    folder, schema = timed(tmp_path, pa.int64())
    midnight = int(datetime(2026, 11, 23, tzinfo=UTC).timestamp())
    reader = open_data(folder, schema, since=str(midnight), until=f"{midnight + 3600}.5")
    assert labels(reader) == [24, 25]
    assert reader.fingerprint() != open_data(folder, schema).fingerprint()


def test_a_glob_reads_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder, schema = timed(tmp_path, pa.int64())
    assert labels(open_data(folder / "day-*.parquet", schema)) == [*range(48)]
    one = open_data(folder / "*1.parquet", schema)
    assert labels(one) == [*range(24, 48)]
    assert one.fingerprint() != open_data(folder / "*.parquet", schema).fingerprint()
    with pytest.raises(DataError, match="no file matches"):
        open_data(folder / "night-*.parquet", schema)


@pytest.mark.parametrize(
    ("since", "until", "reason"),
    [
        ("yesterday", None, "'yesterday' is not a time like 2026-11-23"),
        ("2026-11-23", "2026-11-23", "no time lies between 2026-11-23 and 2026-11-23"),
    ],
)
def test_a_bad_period_is_named(tmp_path: Path, since: str, until: str | None, reason: str) -> None:
    folder, schema = timed(tmp_path, pa.timestamp("ms"))
    with pytest.raises(DataError, match=reason):
        open_data(folder, schema, since=since, until=until)


def test_a_period_without_a_row_is_named(tmp_path: Path) -> None:
    folder, schema = timed(tmp_path, pa.timestamp("ms"))
    reader = open_data(folder, schema, since="2027-01-01", until="2027-02-01")
    with pytest.raises(DataError, match=r"no row has a 'time' since 2027-01-01 before 2027-02-01$"):
        fit_splitter(reader, schema)


def test_a_period_needs_a_number_of_numbers_and_a_split_by_time(tmp_path: Path) -> None:
    folder, schema = timed(tmp_path, pa.int64())
    with pytest.raises(DataError, match="column 'time' holds numbers: '2026-11-23' is not one"):
        open_data(folder, schema, since="2026-11-23")
    hashed = schema.model_copy(update={"split": Split(rule="hash", columns=("item",))})
    with pytest.raises(DataError, match="its split is by hash"):
        open_data(folder, hashed, since="1")
