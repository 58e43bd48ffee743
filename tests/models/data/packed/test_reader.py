from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.data.encoded import encode
from polyrec.models.data.packed import writer as packed_writer
from polyrec.models.data.packed.packing import pack
from polyrec.models.data.packed.reader import KEY, PackedReader
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import Splitter
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import Batch, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import calibrate
from polyrec.models.schema.schema import ROLES, Schema

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], Path]


def rows_of(requests: int, size: int) -> list[Row]:
    return [
        {
            "request": r,
            "age": float(r),
            "user": f"u{r}",
            "tags": ["a"] * (r % 3),
            "item": f"i{k}",
            "price": float(k),
            "extras": [k % 5, 1],
            "clicked": int(k == 1),
        }
        for r in range(requests)
        for k in range(size)
    ]


def packed(rows: Sequence[Row], small: Schema, write: Write, out: Path) -> PackedReader:
    pack(open_data(write(rows), small), small, out, replace=True)
    reader = open_data(out, small)
    assert isinstance(reader, PackedReader)
    return reader


def assert_same(one: Batch, other: Batch) -> None:
    for role in ROLES:
        for name in Block.__dataclass_fields__:
            x, y = (getattr(getattr(batch.exploded(), role), name) for batch in (one, other))
            assert x.dtype == y.dtype
            assert x.tobytes() == y.tobytes(), f"{role}.{name}"


def test_requests_carry_their_context_once(small: Schema, write: Write, tmp_path: Path) -> None:
    reader = packed(rows_of(5, 3), small, write, tmp_path / "p")
    (part,) = reader.requests(["user", "item"])
    assert part.shared.column("user").to_pylist() == [f"u{r}" for r in range(5)]
    assert part.per_row.column("item").to_pylist() == ["i0", "i1", "i2"] * 5
    assert part.lengths.tolist() == [3] * 5
    assert reader.shares_context
    assert reader.rows_hint == 15


@pytest.mark.parametrize("memory_bytes", [1 << 30, 100])
def test_encoded_packed_rows_are_the_plain_ones_with_contexts_shared(
    memory_bytes: int,
    small: Schema,
    small_rows: Callable[..., Any],
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed_writer, "ROW_GROUP_ROWS", 4)

    @settings(max_examples=40)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        seeds = data.draw(st.lists(small_rows(), min_size=2, max_size=6))
        rows = [r | {"request": q, "item": f"i{k}"} for q, r in enumerate(seeds) for k in range(1 + q % 4)]
        path = write(rows)
        plain_reader = open_data(path, small)
        reader = packed(rows, small, write, tmp_path / "p")
        found = calibrate(plain_reader, small, Splitter(small.split, (1, 3)))
        encoder = Encoder(small, found.vocabularies, found.standards)
        splitter = Splitter(small.split, (len(seeds) // 2, len(seeds)))
        which = data.draw(st.sampled_from([(0,), (0, 1), (0, 1, 2)]))
        with (
            encode(plain_reader, encoder, splitter, which, share=False) as plain,
            encode(reader, encoder, splitter, which, memory_bytes) as shared,
        ):
            assert shared.contexts <= len(seeds)
            for name in ("label", "split", "group"):
                assert np.array_equal(getattr(shared, name), getattr(plain, name))
            size = plain.rows
            some = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
            for chosen in (np.arange(size), np.array(some, np.int64)):
                assert_same(shared.batch(chosen), plain.batch(chosen))

    check()


def test_a_packed_file_is_read_with_another_schema_that_its_columns_fit(
    small: Schema, write: Write, tmp_path: Path
) -> None:
    """A shared column is a candidate feature here, so contexts cannot be shared; rows are the same."""
    rows = rows_of(5, 3)
    packed(rows, small, write, tmp_path / "p")
    features = [
        f if f.name != "item" else f.model_copy(update={"role": "context"}) for f in small.categorical
    ]
    other = Schema.model_validate(small.model_copy(update={"categorical": tuple(features)}).model_dump())
    reader = open_data(tmp_path / "p", other)
    assert isinstance(reader, PackedReader)
    assert not reader.shares_context
    found = calibrate(reader, other, Splitter(other.split, (9, 9)))
    encoder = Encoder(other, found.vocabularies, found.standards)
    splitter = Splitter(other.split, (9, 9))
    with (
        encode(reader, encoder, splitter) as one,
        encode(open_data(write(rows), other), encoder, splitter) as two,
    ):
        assert_same(one.batch(np.arange(15)), two.batch(np.arange(15)))


def test_malformed_rows_are_left_out_of_their_request(small: Schema, write: Write, tmp_path: Path) -> None:
    packed(rows_of(4, 2), small, write, tmp_path / "p")
    (file,) = (tmp_path / "p").iterdir()
    table = pq.read_table(file)
    ages = [0.0, float("inf"), 2.0, 3.0]
    prices = [[0.0, 1.0], [0.0, 1.0], [float("inf"), 1.0], [0.0, 1.0]]
    for name, values in (("age", pa.array(ages)), ("price", pa.array(prices))):
        table = table.set_column(table.schema.get_field_index(name), name, values)
    pq.write_table(table, file)
    reader = PackedReader(tmp_path / "p", small, "count")
    (part,) = reader.requests(["item"])
    assert part.lengths.tolist() == [2, 1, 2]
    assert part.per_row.column("item").to_pylist() == ["i0", "i1", "i1", "i0", "i1"]
    assert reader.malformed == 3
    assert sum(b.num_rows for b in reader.batches(["item"])) == 5
    with pytest.raises(DataError, match="row 2: 'age' is inf; correct the row"):
        list(PackedReader(tmp_path / "p", small).batches(["item"]))


def change(file: Path, edit: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(edit(pq.read_table(file)), file)


def test_damage_is_reported_in_one_line(small: Schema, write: Write, tmp_path: Path) -> None:
    out = tmp_path / "p"

    def offense(edit: Callable[[pa.Table], pa.Table]) -> str:
        packed(rows_of(4, 2), small, write, out)
        change(out / "part-00000.parquet", edit)
        with pytest.raises(DataError) as error:
            list(open_data(out, small).batches(["item", "price"]))
        assert "\n" not in str(error.value)
        return str(error.value)

    def set_column(name: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
        return lambda t: t.set_column(t.schema.get_field_index(name), name, pa.array(values))

    def about(**row_changes: Any) -> Callable[[pa.Table], pa.Table]:
        return lambda t: t.replace_schema_metadata(
            {KEY: json.dumps(json.loads(t.schema.metadata[KEY]) | row_changes)}
        )

    assert "the lists of column" in offense(set_column("price", [[1.0], [1.0, 2.0], [1.0], [2.0]]))
    assert "the lists of column" in offense(set_column("price", [None, [1.0, 2.0], [1.0, 2.0], [2.0, 1.0]]))
    assert "column 'price' is double, not a list" in offense(set_column("price", [1.0, 2.0, 3.0, 4.0]))
    assert "column 'price' is string, the schema needs a number" in offense(
        set_column("price", [["a", "b"]] * 4)
    )
    assert "no column 'price'" in offense(lambda t: t.drop_columns(["price"]))
    assert "packed by another version of Polyrec" in offense(about(format="polyrec-packed-9"))
    assert "packed by another version of Polyrec" in offense(about(extra=1))


def test_packed_and_plain_files_do_not_mix(small: Schema, write: Write, tmp_path: Path) -> None:
    out = tmp_path / "p"
    packed(rows_of(4, 2), small, write, out)
    plain = pq.read_table(write(rows_of(1, 1)))
    pq.write_table(plain, out / "z.parquet")
    with pytest.raises(DataError, match="is not packed as"):
        open_data(out, small)
    (out / "z.parquet").rename(out / "a.parquet")
    with pytest.raises(DataError, match="the schema needs"):
        open_data(out, small)


def test_one_file_of_packed_data_is_read_by_itself(small: Schema, write: Write, tmp_path: Path) -> None:
    packed(rows_of(4, 2), small, write, tmp_path / "p")
    reader = open_data(tmp_path / "p" / "part-00000.parquet", small)
    assert reader.rows_hint == 8
    assert len(reader.fingerprint()) == 64
