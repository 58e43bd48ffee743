from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data import split as module
from polyrec.models.data.reader import DataReader, open_data
from polyrec.models.data.split import Splitter, fit_splitter, require_test_rows, stable_hash
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema, Split, load_schema

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], Path]


def with_split(schema: Schema, **split: Any) -> Schema:
    return schema.model_copy(update={"split": Split.model_validate(split)})


def labels_of(reader: DataReader, splitter: Splitter, rows: int = 65536) -> list[int]:
    return [int(s) for b in reader.batches(splitter.split.columns, rows) for s in splitter(b)]


def prefix(times: list[int], share: float) -> set[int]:
    """Times of the smallest prefix, never cutting a time in two, with at least `share` of the rows."""
    kept: set[int] = set()
    for time in sorted(set(times)):
        if sum(t in kept for t in times) >= share * len(times):
            break
        kept.add(time)
    return kept


@given(
    times=st.lists(st.integers(-3, 9) | st.integers(2**60, 2**60 + 5), min_size=1, max_size=40),
    size=st.integers(1, 50),
)
def test_a_time_split_is_the_obvious_one(times: list[int], size: int, small: Schema, write: Write) -> None:
    reader = open_data(write([{"request": t, "clicked": 0} for t in times]), small)
    before_test = prefix(times, small.split.train)
    if len(set(times)) == 1:
        with pytest.raises(DataError, match="leaves no test rows"):
            fit_splitter(reader, small)
        return
    if before_test == set(times):
        before_test = before_test - {max(times)}
    train = prefix([t for t in times if t in before_test], 1 - small.split.validation)
    if train == before_test and len(train) > 1:
        train = train - {max(train)}
    expected = [0 if t in train else 1 if t in before_test else 2 for t in times]
    assert labels_of(reader, fit_splitter(reader, small), size) == expected


def test_with_few_large_requests_one_is_left_for_validation(small: Schema, write: Write) -> None:
    """A tenth of ten requests is less than the last of them, which training took too."""
    times = [t for t in range(12) for _ in range(40 if t == 9 else 20)]
    reader = open_data(write([{"request": t, "clicked": 0} for t in times]), small)
    found = labels_of(reader, fit_splitter(reader, small))
    assert {t for t, label in zip(times, found, strict=True) if label == 1} == {9}


@pytest.mark.parametrize("days", [3, 4])
def test_with_few_days_the_last_two_are_validation_and_test(small: Schema, write: Write, days: int) -> None:
    """The last day has more than the test's share, which refused the data."""
    times = [t for t in range(days) for _ in range(20)]
    reader = open_data(write([{"request": t, "clicked": 0} for t in times]), small)
    found = labels_of(reader, fit_splitter(reader, small))
    assert found == [0] * 20 * (days - 2) + [1] * 20 + [2] * 20


@given(times=st.lists(st.integers(0, 60), max_size=200), limit=st.integers(1, 30))
def test_a_time_split_does_not_depend_on_when_counts_are_merged(
    times: list[int], limit: int, small: Schema, write: Write
) -> None:
    times = [*times, *range(40)]
    reader = open_data(write([{"request": t, "clicked": 0} for t in times]), small)
    with pytest.MonkeyPatch.context() as patch:
        whole = fit_splitter(reader, small)
        patch.setattr(module, "MERGE_FROM", limit)
        patch.setattr(module, "ROWS", 7)
        assert fit_splitter(reader, small) == whole


def test_times_of_any_type_are_compared(small: Schema, tmp_path: Path) -> None:
    schema = with_split(small, rule="time", columns=["when"])
    columns = {name: pa.nulls(10) for name in small.columns} | {"clicked": pa.array([0] * 10)}
    for type_ in (pa.timestamp("ns"), pa.time64("us"), pa.float64(), pa.int8()):
        when = pa.array(range(10), pa.int64()).cast(type_)
        pq.write_table(pa.table(columns | {"when": when}), tmp_path / "f.parquet")
        reader = open_data(tmp_path / "f.parquet", schema)
        assert labels_of(reader, fit_splitter(reader, schema)) == [0] * 7 + [1] + [2] * 2


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("request", [1, None, 3], "rows.parquet: row 1: split column 'request': a value is missing"),
        ("item", ["1", "2", "3"], "split column 'item' is string; a split by time needs a number"),
        ("item", [None, None, None], "rows.parquet: row 0: split column 'item': a value is missing"),
        ("request", [1, 1, 1], "leaves no test rows: 'request' has 1 different value"),
        ("request", [], "there are no rows to split"),
    ],
)
def test_a_column_that_is_no_time_is_rejected(
    column: str, values: list[Any], message: str, small: Schema, write: Write
) -> None:
    schema = with_split(small, rule="time", columns=[column])
    rows = [{"clicked": 0, column: value} for value in values]
    with pytest.raises(DataError) as error:
        fit_splitter(open_data(write(rows), schema), schema)
    assert message in str(error.value)


@given(data=st.data())
def test_a_hash_split_does_not_depend_on_row_order(
    data: st.DataObject, small: Schema, small_rows: Callable[..., Any], write: Write
) -> None:
    schema = with_split(small, rule="hash", columns=["user", "code"])
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=20))
    order = data.draw(st.permutations(range(len(rows))))
    reader = open_data(write(rows), schema)
    splitter = fit_splitter(reader, schema)
    there = labels_of(reader, splitter)
    reader = open_data(write([rows[i] for i in order]), schema)
    assert labels_of(reader, splitter, 3) == [there[i] for i in order]


def test_a_hash_split_has_the_requested_shares(small: Schema) -> None:
    splitter = Splitter(Split(rule="hash", columns=("a", "b"), train=0.7, validation=0.2))
    random = np.random.default_rng(0)
    a = pa.array([f"user-{i}" for i in random.integers(0, 3000, 50_000)])
    b = pa.array(random.integers(0, 1000, 50_000))
    shares = np.bincount(splitter(pa.record_batch({"a": a, "b": b}))) / 50_000
    assert shares == pytest.approx([0.56, 0.14, 0.3], abs=0.01)


STRING_HASHES = [
    "e220a8397b1dcdaf",
    "5e025f9ade9eaf3e",
    "e78225db8e1c54e6",
    "4329f15544a4598f",
    "20c5b486e45803db",
]
INTEGER_HASHES = ["e220a8397b1dcdaf", "910a2dec89025cc1", "e4d971771b652c20", "20c5b486e45803db"]


def test_hashes_stay_as_they_are() -> None:
    """A new version must not move rows between training and test, so these numbers must never change."""
    strings = stable_hash(pa.array(["", "a", "trivago", "longer than eight bytes", None]))
    assert [f"{h:016x}" for h in strings] == STRING_HASHES
    integers = stable_hash(pa.array([0, 1, -1, None]))
    assert [f"{h:016x}" for h in integers] == INTEGER_HASHES


@given(values=st.lists(st.text(max_size=20), unique=True, max_size=50), start=st.integers(0, 3))
def test_different_strings_have_different_hashes_and_equal_ones_the_same(
    values: list[str], start: int
) -> None:
    hashes = stable_hash(pa.array(values, pa.string()))
    assert len(set(hashes.tolist())) == len(values)
    assert np.array_equal(stable_hash(pa.array(values, pa.string()).slice(start)), hashes[start:])
    twice = stable_hash(pa.array([*values, *values], pa.string()))
    assert np.array_equal(twice, np.concatenate([hashes, hashes]))


def test_equal_floats_have_equal_hashes() -> None:
    zero, negative, one = stable_hash(pa.array([0.0, -0.0, 1.0]))
    assert zero == negative != one


def test_a_column_says_which_rows_train(small: Schema, write: Write) -> None:
    schema = with_split(small, rule="column", columns=["item"])
    names = ["test", "train", "validation", "train"]
    reader = open_data(write([{"clicked": 0, "item": name} for name in names]), schema)
    assert labels_of(reader, fit_splitter(reader, schema)) == [2, 0, 1, 0]


@pytest.mark.parametrize("value", ["Train", "", None])
def test_another_value_of_a_split_column_is_rejected(value: str | None, small: Schema, write: Write) -> None:
    schema = with_split(small, rule="column", columns=["item"])
    reader = open_data(write([{"clicked": 0, "item": name} for name in ["train", value]]), schema)
    with pytest.raises(DataError, match=f"'item' says {value!r}; it must be one of train, validation, test"):
        labels_of(reader, fit_splitter(reader, schema))


@pytest.mark.parametrize(
    ("items", "split"),
    [
        ([], {"rule": "hash", "columns": ["item"]}),
        ([], {"rule": "column", "columns": ["item"]}),
        (["train", "validation"], {"rule": "column", "columns": ["item"]}),
    ],
)
def test_data_without_test_rows_are_reported(
    items: list[str], split: dict[str, Any], small: Schema, write: Write
) -> None:
    schema = with_split(small, **split)
    file = write([{"clicked": 0, "item": name} for name in ["test", *items]])
    pq.write_table(pq.read_table(file).slice(1), file)
    with pytest.raises(DataError, match=f"the split by {split['rule']} leaves no test rows"):
        require_test_rows(open_data(file, schema), schema)


def test_trivago_is_split_as_its_notes_say(shared_data: Path) -> None:
    schema = load_schema("trivago")
    reader = open_data(shared_data / "trivago" / "impressions.parquet", schema)
    counts = np.bincount(labels_of(reader, fit_splitter(reader, schema)))
    assert counts[:2].sum() == 250_051
    assert counts[2] == 62_488
    assert counts[1] == pytest.approx(25_005, abs=30)
