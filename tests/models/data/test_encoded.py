from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import DataReader, open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import Batch, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import calibrate
from polyrec.models.schema.schema import ROLES, Schema, Split

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], Path]

IN_MEMORY, IN_FILES = 1 << 30, 100


def by_request(data: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Requests 0, 1, 2 train, 3 validates, 4 and 5 test."""
    return np.array([0, 0, 0, 1, 2, 2], np.int8)[data.column("request").to_numpy()]


def everything_trains(data: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int8]]:
    return np.zeros(data.num_rows, np.int8)


def encoder_of(reader: DataReader, schema: Schema) -> Encoder:
    found = calibrate(reader, schema, everything_trains)
    return Encoder(schema, found.vocabularies, found.standards)


def assert_same(one: Batch, other: Batch) -> None:
    """The same rows, whichever contexts are shared."""
    one, other = one.exploded(), other.exploded()
    for role in ROLES:
        for name in Block.__dataclass_fields__:
            x, y = (getattr(getattr(batch, role), name) for batch in (one, other))
            assert x.dtype == y.dtype, f"{role}.{name}"
            assert np.array_equal(x, y), f"{role}.{name}"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path) -> Iterator[Path]:
    """Temporary folders of this test stand here."""
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path)
    yield tmp_path
    tempfile.tempdir = before


@pytest.mark.hypothesis
@pytest.mark.parametrize("memory_bytes", [IN_MEMORY, IN_FILES])
def test_rows_come_back_in_any_order_as_the_encoder_made_them(
    memory_bytes: int, small: Schema, small_rows: Callable[..., Any], write: Write
) -> None:
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        rows = data.draw(st.lists(small_rows(), min_size=1, max_size=30))
        reader = open_data(write(rows), small)
        encoder = encoder_of(reader, small)
        which = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)), np.int64)
        (whole,) = pa.Table.from_batches(reader.batches(small.columns)).combine_chunks().to_batches()
        plain = encoder.from_arrow(whole)
        with encode(reader, encoder, by_request, memory_bytes=memory_bytes) as encoded:
            expected = Batch(plain.context.take(which), plain.candidate.take(which))
            assert_same(encoded.batch(which), expected)
            assert encoded.rows == len(rows)
            assert encoded.label.tolist() == [row["clicked"] for row in rows]
            assert encoded.group is not None
            assert encoded.group.tolist() == [row["request"] for row in rows]
            assert encoded.split.tolist() == by_request(whole).tolist()

    check()


@given(data=st.data())
def test_only_the_requested_splits_are_kept(
    data: st.DataObject, small: Schema, small_rows: Callable[..., Any], write: Write
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=30))
    which = data.draw(st.lists(st.sampled_from([TRAIN, VALIDATION, TEST]), unique=True, min_size=1))
    reader = open_data(write(rows), small)
    encoder = encoder_of(reader, small)
    requests = [r["request"] for r in rows if [0, 0, 0, 1, 2, 2][r["request"]] in which]
    if not requests:
        with pytest.raises(DataError, match="no rows to use"):
            encode(reader, encoder, by_request, which)
        return
    with encode(reader, encoder, by_request, which) as encoded:
        assert encoded.group is not None
        assert encoded.group.tolist() == requests
        for split in (TRAIN, VALIDATION, TEST):
            chosen = encoded.select(split)
            assert encoded.split[chosen].tolist() == [split] * chosen.size
        parts = [encoded.select(s) for s in (TRAIN, VALIDATION, TEST)]
        assert sorted(np.concatenate(parts)) == list(range(encoded.rows))
        assert np.array_equal(encoded.select(TRAIN, TEST), np.union1d(parts[0], parts[2]))


def rows_of(count: int) -> list[Row]:
    return [
        {"request": i % 6, "clicked": i % 3, "item": f"i{i % 5}", "tags": ["a"] * (i % 4)}
        for i in range(count)
    ]


def test_files_are_removed_when_closed(small: Schema, write: Write, temporary: Path) -> None:
    reader = open_data(write(rows_of(20)), small)
    encoder = encoder_of(reader, small)
    with encode(reader, encoder, by_request, memory_bytes=IN_FILES):
        assert len(list(temporary.iterdir())) == 1
    assert list(temporary.iterdir()) == []


def test_files_are_removed_when_forgotten(small: Schema, write: Write, temporary: Path) -> None:
    reader = open_data(write(rows_of(20)), small)
    encoded: EncodedRows | None = encode(reader, encoder_of(reader, small), by_request, memory_bytes=IN_FILES)
    assert encoded is not None
    encoded = None
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_files_are_removed_when_a_row_is_rejected(small: Schema, write: Write, temporary: Path) -> None:
    rows = rows_of(2000)
    encoder = encoder_of(open_data(write(rows), small), small)
    rows[-1]["request"] = None
    reader = open_data(write(rows), small)
    with pytest.raises(DataError, match=r"\.parquet: group column 'request': a value is missing"):
        encode(reader, encoder, everything_trains, memory_bytes=IN_FILES)
    assert list(temporary.iterdir()) == []


def test_rows_in_memory_make_no_files(small: Schema, write: Write, temporary: Path) -> None:
    reader = open_data(write(rows_of(20)), small)
    with encode(reader, encoder_of(reader, small), by_request):
        assert list(temporary.iterdir()) == []


def test_labels_above_the_threshold_are_positive(small: Schema, write: Write) -> None:
    schema = small.model_copy(update={"label": small.label.model_copy(update={"positive_above": 1.0})})
    reader = open_data(write(rows_of(9)), schema)
    with encode(reader, encoder_of(reader, schema), by_request) as encoded:
        assert encoded.label.tolist() == [0, 0, 1] * 3
        assert encoded.label.dtype == np.float32


def test_groups_that_are_strings_become_codes(small: Schema, write: Write) -> None:
    schema = small.model_copy(update={"group": "item", "split": Split(rule="column", columns=("user",))})
    reader = open_data(write(rows_of(23)), schema)
    with encode(reader, encoder_of(reader, schema), everything_trains) as encoded:
        assert encoded.group is not None
        assert encoded.group.dtype == np.int64
        same = encoded.group[:, None] == encoded.group
        names = np.array([row["item"] for row in rows_of(23)])
        assert np.array_equal(same, names[:, None] == names)


def test_a_schema_without_bags_or_dense_features_is_encoded(small: Schema, write: Write) -> None:
    schema = small.model_copy(
        update={
            "dense": (),
            "group": None,
            "categorical": tuple(f for f in small.categorical if f.name == "item"),
        }
    )
    schema = Schema.model_validate(schema.model_dump())
    reader = open_data(write(rows_of(20)), schema)
    for memory_bytes in (IN_MEMORY, IN_FILES):
        with encode(reader, encoder_of(reader, schema), by_request, memory_bytes=memory_bytes) as encoded:
            batch = encoded.batch(np.array([3, 3, 19]))
            assert batch.rows == batch.context.rows == 3
            assert batch.context_row is None
            assert batch.context.ranks.shape == (3, 0)
            assert batch.candidate.ranks.shape == (3, 1)
            assert batch.candidate.bags == 0
            assert encoded.group is None


def test_progress_tells_every_row_read(small: Schema, write: Write) -> None:
    reader = open_data(write(rows_of(50)), small)
    told: list[int] = []
    encode(reader, encoder_of(reader, small), by_request, (TEST,), progress=told.append).close()
    assert sum(told) == 50


def split_requests(count: int, size: int) -> list[Row]:
    """`count` requests of `size` rows, in order; every other user is the one before."""
    return [
        {
            "request": i // size,
            "user": f"u{i // size // 2}",
            "item": f"i{i}",
            "clicked": 0,
            "tags": ["a", "b"],
        }
        for i in range(count * size)
    ]


def test_rows_of_one_context_share_it(small: Schema, write: Write) -> None:
    reader = open_data(write(split_requests(6, 4)), small)
    encoder = encoder_of(reader, small)
    with encode(reader, encoder, everything_trains) as shared:
        assert shared.contexts == 3
        batch = shared.batch(np.array([9, 1, 2, 8, 0]))
        assert batch.context_row is not None
        assert batch.context_row.tolist() == [1, 0, 0, 1, 0]
        assert batch.context.rows == 2
        with encode(reader, encoder, everything_trains, share=False) as plain:
            assert plain.contexts == plain.rows == 24
            assert plain.nbytes > shared.nbytes
            which = np.array([9, 1, 2, 8, 0])
            assert plain.batch(which).context_row is None
            assert_same(batch, plain.batch(which))


def test_a_batch_of_few_rows_a_context_is_plain(small: Schema, write: Write) -> None:
    reader = open_data(write(split_requests(6, 4)), small)
    with encode(reader, encoder_of(reader, small), everything_trains) as encoded:
        assert encoded.batch(np.array([0, 8, 16])).context_row is None
        assert encoded.batch(np.array([0, 1, 8, 9])).context_row is None
        assert encoded.batch(np.array([0, 1, 2, 8, 9])).context_row is not None


def test_a_schema_without_groups_shares_nothing(small: Schema, write: Write) -> None:
    schema = small.model_copy(update={"group": None})
    reader = open_data(write(split_requests(6, 4)), schema)
    with encode(reader, encoder_of(reader, schema), everything_trains) as encoded:
        assert encoded.contexts == encoded.rows


def test_a_context_that_changes_within_a_request_is_not_shared(small: Schema, write: Write) -> None:
    rows = split_requests(2, 4)
    rows[2]["tags"] = ["b", "a"]
    rows[5]["age"], rows[6]["age"] = 3.0, 9.0
    reader = open_data(write(rows), small)
    encoder = encoder_of(reader, small)
    which = np.arange(8)
    with encode(reader, encoder, everything_trains) as shared:
        assert shared.contexts == 6  # rows 0-1, 2, 3-4, 5, 6, 7
        with encode(reader, encoder, everything_trains, share=False) as plain:
            assert_same(shared.batch(which), plain.batch(which))
