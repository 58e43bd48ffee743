from __future__ import annotations

import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data.guess.schema_guess import guess_schema
from polyrec.models.data.parquet import unread_files
from polyrec.models.data.reader import open_data
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], Path]
ToArrow = Callable[[Sequence[Row]], pa.Table]


def row(**values: Any) -> Row:
    names = ["age", "price", "user", "last", "tags", "history", "item", "place", "code", "extras"]
    return dict.fromkeys(names) | {"request": 0, "clicked": 0} | values


@given(data=st.data())
def test_written_data_are_read_back(
    data: st.DataObject, small: Schema, small_rows: Callable[..., Any], write: Write
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=20))
    columns = data.draw(st.lists(st.sampled_from(small.columns), min_size=1, unique=True))
    size = data.draw(st.integers(1, 9))
    reader = open_data(write(rows), small)
    batches = list(reader.batches(columns, size))
    assert [r for b in batches for r in b.to_pylist()] == [{c: r[c] for c in columns} for r in rows]
    assert all(0 < b.num_rows <= size for b in batches)
    assert reader.rows_hint == len(rows)


def test_a_folder_is_read_file_by_file_in_the_order_of_names(
    small: Schema, arrow: ToArrow, tmp_path: Path
) -> None:
    for name, item in [("b.parquet", "2"), ("a.parquet", "1"), ("c/d.parquet", "3")]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(arrow([row(item=item)] * 2), path)
    (tmp_path / "notes.txt").write_text("not data")
    reader = open_data(tmp_path, small)
    items = [v for b in reader.batches(["item"]) for v in b.column("item").to_pylist()]
    assert items == ["1", "1", "2", "2", "3", "3"]
    assert reader.rows_hint == 6


def test_unfinished_files_are_not_read_and_data_of_other_names_are_told(
    small: Schema, arrow: ToArrow, tmp_path: Path
) -> None:
    for name in ("day=1/a.parquet", "_temporary/0/a.parquet", "._a.parquet", "day=1/.tmp/b.parquet"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(arrow([row(item=name)]), path)
    for name in ("_SUCCESS", "notes.txt", "day=1/b.parq", "B.PARQUET", "c.csv", "a.csv", "d.csv.gz"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "a.csv.parquet").symlink_to(tmp_path / "day=1/a.parquet")
    reader = open_data(tmp_path, small)
    items = [v for b in reader.batches(["item"]) for v in b.column("item").to_pylist()]
    assert items == ["day=1/a.parquet"] * 2
    unread = [file.relative_to(tmp_path).as_posix() for file in unread_files(tmp_path)]
    assert unread == ["B.PARQUET", "c.csv", "d.csv.gz", "day=1/b.parq"]
    assert unread_files(tmp_path / "a.csv.parquet") == []


def test_memory_does_not_grow_with_the_file(small: Schema, arrow: ToArrow, tmp_path: Path) -> None:
    path = tmp_path / "big.parquet"
    part = arrow([row(item=f"item-{i % 1000:0100}", price=float(i)) for i in range(20_000)])
    with pq.ParquetWriter(path, part.schema) as file:
        for _ in range(40):
            file.write_table(part)
    whole = 40 * part.nbytes
    reader = open_data(path, small)
    before = pa.total_allocated_bytes()
    most = rows = 0
    for batch in reader.batches(small.columns, 4096):
        most = max(most, pa.total_allocated_bytes() - before)
        rows += batch.num_rows
    assert rows == 800_000
    assert most < whole / 10


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"clicked": None}, "row 9: 'clicked' is None"),
        ({"price": math.inf, "age": None}, "row 9: 'price' is inf"),
        ({"age": -math.inf}, "row 9: 'age' is -inf"),
    ],
)
def test_a_malformed_row_is_reported_by_number(bad: Row, message: str, small: Schema, write: Write) -> None:
    path = write([*[row()] * 9, row(**bad), row()])
    with pytest.raises(DataError, match="correct the row") as error:
        list(open_data(path, small).batches(["item"], 4))
    assert message in str(error.value)


def test_malformed_rows_are_left_out_and_counted_in_every_pass(small: Schema, write: Write) -> None:
    rows = [row(item=str(i), clicked=None if i % 3 == 0 else 1) for i in range(10)]
    rows[1]["price"] = math.inf
    reader = open_data(write(rows), small, "count")
    for columns in (["item"], ["clicked", "item"], ["item", "tags"]):
        items = [v for b in reader.batches(columns, 4) for v in b.column("item").to_pylist()]
        assert items == ["2", "4", "5", "7", "8"]
        assert reader.malformed == 5


def test_a_not_a_number_is_a_missing_value(small: Schema, write: Write) -> None:
    reader = open_data(write([row(price=math.nan)]), small)
    assert [b.column("price").to_pylist() for b in reader.batches(["price"])] == [[None]]


def test_a_file_without_a_column_of_the_schema_is_rejected(
    small: Schema, arrow: ToArrow, tmp_path: Path
) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(arrow([row()]).drop_columns(["item"]), path)
    with pytest.raises(DataError, match="no column 'item'; the columns are request, age"):
        open_data(path, small)
    pq.write_table(arrow([row()]), path)
    with pytest.raises(DataError, match="no column 'planted'"):
        list(open_data(path, small).batches(["planted"]))


def test_a_column_of_the_wrong_type_is_rejected_before_reading(
    small: Schema, arrow: ToArrow, tmp_path: Path
) -> None:
    path = tmp_path / "f.parquet"
    table = arrow([row()]).drop_columns(["item"]).append_column("item", pa.array([5]))
    pq.write_table(table, path)
    with pytest.raises(DataError, match="column 'item' is int64, the schema needs a string"):
        open_data(path, small)


def test_message_explains_how_to_convert_a_folder_of_csv_files(small: Schema, tmp_path: Path) -> None:
    # as Spark writes it, with checksums
    folder = tmp_path / "clicks.csv"
    for day in ("01", "02"):
        (folder / f"dt={day}").mkdir(parents=True)
        (folder / f"dt={day}" / "part-0.csv").write_text("dense,label\n1.5,0\n")
        (folder / f"dt={day}" / ".part-0.csv.crc").write_bytes(b"crc\0")
    for data in (folder, tmp_path):
        with pytest.raises(
            DataError, match=r"no \*.parquet file in .*; of its CSV files make some: python"
        ) as e:
            open_data(data, small)
        program, *arguments = shlex.split(str(e.value).partition("some: ")[2])
        subprocess.run([{"python": sys.executable}[program], *arguments], check=True)
        made = list(tmp_path.rglob("*.parquet"))
        assert len(made) == 2
        for file in made:
            file.unlink()


def test_message_explains_how_to_convert_a_csv_file(small: Schema, tmp_path: Path) -> None:
    path = tmp_path / "it's $HOME.csv"
    path.write_text("item,clicked\na,1\n")
    with pytest.raises(DataError, match=r".csv' is not Parquet; of a CSV file make one: python -c") as e:
        guess_schema(path)
    path.write_text('item,city,country,clicked\n"a, b",Ürümqi,NA,1\nc,,null,0\n')
    command = shlex.split(str(e.value).partition("make one: ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True)
    # an empty field is a missing value, not the text ''; NA is Namibia
    assert pq.read_table(tmp_path / "it's $HOME.parquet").to_pylist() == [
        {"item": "a, b", "city": "Ürümqi", "country": "NA", "clicked": 1},
        {"item": "c", "city": None, "country": "null", "clicked": 0},
    ]
    with pytest.raises(DataError, match="of a CSV file make one"):
        open_data(path, small)
    with pytest.raises(DataError, match=r"no data file .*absent\.csv"):
        guess_schema(tmp_path / "absent.csv")


def test_a_damaged_file_is_rejected_in_one_line(small: Schema, write: Write, tmp_path: Path) -> None:
    whole = write([row(item=str(i)) for i in range(50)]).read_bytes()
    path = tmp_path / "f.parquet"
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match="as Parquet") as error:
        open_data(path, small)
    assert "\n" not in str(error.value)
    path.write_bytes(whole[:4] + b"\xff" * 400 + whole[404:])
    with pytest.raises(DataError, match="cannot read") as error:
        list(open_data(path, small).batches(small.columns))
    assert "\n" not in str(error.value)


def time_schema() -> Schema:
    return Schema.model_validate(
        {
            "name": "timed",
            "categorical": [{"name": "item"}],
            "label": {"column": "y"},
            "group": "request",
            "split": {"rule": "time", "columns": ["at"], "train": 0.5, "validation": 0.5},
        }
    )


def timed(file: Path, at: pa.Array, request: pa.Array | None = None) -> None:
    n = len(at)
    request = pa.array(range(n)) if request is None else request
    pq.write_table(pa.table({"item": ["a"] * n, "y": [1] * n, "request": request, "at": at}), file)


def test_times_of_files_in_other_units_compare(tmp_path: Path) -> None:
    days = [datetime(2026, 11, d) for d in (3, 1, 2)]
    timed(tmp_path / "1.parquet", pa.array(days, pa.timestamp("us")))
    timed(tmp_path / "2.parquet", pa.array(days, pa.timestamp("ns", "UTC")))
    timed(tmp_path / "3.parquet", pa.array(days, pa.date32()))
    timed(tmp_path / "4.parquet", pa.array(days, pa.timestamp("ms")).dictionary_encode())
    for first in range(1, 4):
        (tmp_path / "0.parquet").write_bytes((tmp_path / f"{first}.parquet").read_bytes())
        reader = open_data(tmp_path, time_schema())
        times = [t for b in reader.batches(["at"]) for t in b.column("at").to_pylist()]
        assert times == times[:3] * 5
        assert times[1] < times[2] < times[0]


@pytest.mark.parametrize(
    ("at", "group", "message"),
    [
        (pa.array([1.0, 2.0]), None, "column 'at' is double, but int64 in '.*1.parquet'"),
        (pa.array([datetime(2026, 11, 1)] * 2), None, "column 'at' is timestamp"),
        (pa.array([1, 2]), pa.array(["1", "2"]), "column 'request' is string, but int64 in"),
        (
            pa.array([1, 2]),
            pa.array([1, 2], pa.duration("s")),
            r"column 'request' is duration\[s\], but int64",
        ),
    ],
)
def test_keys_of_files_that_do_not_compare_are_refused(
    tmp_path: Path, at: pa.Array, group: pa.Array | None, message: str
) -> None:
    timed(tmp_path / "1.parquet", pa.array([1, 2]))
    timed(tmp_path / "2.parquet", at, group)
    with pytest.raises(DataError, match=f"2.parquet: {message}"):
        open_data(tmp_path, time_schema())


def test_durations_of_files_in_other_units_are_refused(tmp_path: Path) -> None:
    for number, unit in enumerate(("s", "us"), 1):
        timed(tmp_path / f"{number}.parquet", pa.array([1, 2], pa.duration(unit)))
    with pytest.raises(DataError, match=r"2.parquet: column 'at' is duration\[us\], but duration\[s\] in"):
        open_data(tmp_path, time_schema())


def test_a_time_that_the_first_files_unit_cannot_hold_is_refused(tmp_path: Path) -> None:
    """It wrapped to a time before all others, so its rows became training rows."""
    timed(tmp_path / "1.parquet", pa.array([datetime(2026, 11, 1)], pa.timestamp("ns")))
    timed(tmp_path / "2.parquet", pa.array([datetime(9999, 12, 31)], pa.timestamp("us")))
    reader = open_data(tmp_path, time_schema())
    with pytest.raises(DataError, match=r"cannot read '.*2.parquet': Casting .* out of bounds timestamp"):
        list(reader.batches(["at"]))


@pytest.mark.parametrize("empty", [1, 2])
def test_a_file_in_which_all_values_of_a_key_are_missing_is_read(tmp_path: Path, empty: int) -> None:
    for number in (1, 2):
        keys = pa.nulls(2) if number == empty else pa.array([7, 8])
        timed(tmp_path / f"{number}.parquet", pa.array([1, 2]), keys)
    batches = open_data(tmp_path, time_schema()).batches(["request"])
    keys = [key for batch in batches for key in batch.column("request").to_pylist()]
    assert sorted(keys, key=str) == [7, 8, None, None]
