from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.errors import DataError, FeatureError
from polyrec.models.schema.batch import I64, Batch, Block
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES, Categorical, Schema
from polyrec.models.schema.vocabulary import Vocabulary

Row = dict[str, Any]
ToArrow = Callable[[Sequence[Row]], pa.Table]

STANDARDS = {"age": Standard(2.5, 1.25), "price": Standard(40.0, 16.0)}
KNOWN: dict[str, list[str] | list[int] | int] = {
    "user": ["a", "ä", ""],
    "item": ["z", "b", "日本"],
    "tags": ["a longer name", "a"],
    "place": 4,
    "code": [5, 0, -1],
    "extras": 5,
}


def encoder_of(schema: Schema, oov: str = "row") -> Encoder:
    random = np.random.default_rng(0)
    vocabularies = {}
    for table, (head, *_) in schema.tables.items():
        known = KNOWN[table]
        size = known if isinstance(known, int) else len(known)
        values = None
        if not isinstance(known, int):
            values = pa.array(known, pa.string() if head.type == "string" else pa.int64())
        counts = np.zeros(size + 2, np.int64)
        vocabularies[table] = Vocabulary(
            table, head.type, size, random.permutation(size + 2), counts, values, oov=oov
        )
    return Encoder(schema, vocabularies, STANDARDS)


@pytest.fixture(scope="module")
def encoder(small: Schema) -> Encoder:
    return encoder_of(small)


def requested(encoder: Encoder, rows: Sequence[Row]) -> Batch:
    """The rows as columns of a request."""
    blocks = []
    for role in ROLES:
        names = encoder.schema.layout(role).names
        blocks.append(encoder.block(role, {n: [row[n] for row in rows] for n in names}, len(rows)))
    return Batch(*blocks)


def id_of(v: Vocabulary, known: list[Any] | int, value: Any) -> int:
    values = list(range(known)) if isinstance(known, int) else known
    if value is None:
        return v.missing_id
    return values.index(value) if value in values else v.oov_id


def identified(encoder: Encoder, rows: Sequence[Row]) -> Batch:
    """The rows as ready ids."""

    def ids(feature: Categorical, values: Sequence[Any]) -> list[int]:
        return [id_of(encoder.vocabulary(feature), KNOWN[feature.table_name], v) for v in values]

    schema = encoder.schema
    dense = np.array([[row[d.name] for d in schema.dense] for row in rows], np.float32)
    singles = [ids(f, [row[f.name] for row in rows]) for f in schema.categorical if not f.multi]
    bags: dict[str, tuple[I64, I64]] = {}
    for f in schema.categorical:
        if f.multi:
            lists = [row[f.name] or [] for row in rows]
            flat = ids(f, [value for values in lists for value in values])
            bags[f.name] = (np.array(flat, np.int64), np.array([*map(len, lists)], np.int64))
    return encoder.from_ids(dense.reshape(len(rows), len(schema.dense)), np.array(singles, np.int64).T, bags)


def assert_same(one: Batch, other: Batch) -> None:
    for role in ROLES:
        a, b = (getattr(one, role), getattr(other, role))
        for name in Block.__dataclass_fields__:
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype, f"{role}.{name}"
            assert np.array_equal(x, y), f"{role}.{name}"


@given(data=st.data())
def test_a_request_and_data_give_the_same_batch(
    data: st.DataObject, encoder: Encoder, small_rows: Callable[..., Any], arrow: ToArrow
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=8))
    for part in arrow(rows).to_batches():
        assert_same(requested(encoder, rows), encoder.from_arrow(part))


@given(data=st.data())
def test_a_request_and_ready_ids_give_the_same_batch(
    data: st.DataObject, encoder: Encoder, small_rows: Callable[..., Any]
) -> None:
    rows = data.draw(st.lists(small_rows(dense_missing=False), min_size=1, max_size=8))
    assert_same(requested(encoder, rows), identified(encoder, rows))


@given(data=st.data())
def test_encoded_data_does_not_depend_on_where_a_batch_is_cut(
    data: st.DataObject, encoder: Encoder, small_rows: Callable[..., Any], arrow: ToArrow
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=2, max_size=8))
    cut = data.draw(st.integers(1, len(rows) - 1))
    (whole,) = arrow(rows).to_batches()
    parts = [encoder.from_arrow(whole.slice(0, cut)), encoder.from_arrow(whole.slice(cut))]
    assert_same(Batch.concat(parts), encoder.from_arrow(whole))


def test_a_feature_left_out_is_missing_in_every_row(encoder: Encoder) -> None:
    names = encoder.schema.candidate.names
    nothing = encoder.block("candidate", {}, 2)
    explicit = encoder.block("candidate", {n: [None, None] for n in names}, 2)
    for name in Block.__dataclass_fields__:
        assert np.array_equal(getattr(nothing, name), getattr(explicit, name))
    assert nothing.dense.tolist() == [[-1.0], [-1.0]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": ["a"]}, "feature 'user': 1 values for 2 rows"),
        ({"tags": [[], ["a"] * 4]}, "feature 'tags': 4 values exceed max_length 3 (row 1)"),
        ({"age": [1.0, 10**400]}, "feature 'age': a value is too large"),
        ({"age": [1.0, math.inf]}, "feature 'age': value inf is not a finite number (row 1)"),
    ],
)
def test_a_malformed_request_is_rejected_by_feature(
    encoder: Encoder, columns: Mapping[str, Sequence[Any]], message: str
) -> None:
    with pytest.raises(FeatureError) as error:
        encoder.block("context", columns, 2)
    assert message in str(error.value)


def test_data_beyond_max_length_keeps_the_head(encoder: Encoder, arrow: ToArrow) -> None:
    row: Row = {name: None for name in encoder.schema.columns}
    long = row | {"tags": ["a", "b", None, "a longer name", "a"], "history": ["z"]}
    (data,) = arrow([long, row, long]).to_batches()
    cut = long | {"tags": long["tags"][:3]}
    assert_same(encoder.from_arrow(data), requested(encoder, [cut, row, cut]))


def ids(rows: int, **edits: Any) -> dict[str, Any]:
    no_bag = (np.empty(0, np.int64), np.zeros(rows, np.int64))
    return {
        "dense": np.zeros((rows, 2), np.float32),
        "sparse": np.zeros((rows, 5), np.int64),
        "bags": {"tags": no_bag, "history": no_bag, "extras": no_bag} | edits.pop("bags", {}),
    } | edits


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"dense": np.array([[0, np.nan]], np.float32)}, "feature 'price': value nan is not a finite"),
        ({"sparse": np.array([[0, 0, 9, 0, 0]])}, "feature 'item': id 9 is outside [0, 5)"),
        ({"bags": {"tags": (np.array([1]), np.array([2]))}}, "'tags': lengths add up to 2, values are 1"),
        ({"bags": {"tags": (np.array([9]), np.array([1]))}}, "feature 'tags': id 9 is outside [0, 4)"),
        ({"bags": {"tags": (np.zeros(4, int), np.array([4]))}}, "length 4 is outside [0, 3] (row 0)"),
        ({"bags": {"tags": (np.empty(0, int), np.array([-1]))}}, "length -1 is outside [0, 3] (row 0)"),
        ({"bags": {"tags": (np.empty(0, int), np.zeros(2, int))}}, "feature 'tags': 2 lengths for 1 rows"),
    ],
)
def test_malformed_ids_are_rejected_by_feature(encoder: Encoder, edits: dict[str, Any], message: str) -> None:
    with pytest.raises(FeatureError) as error:
        encoder.from_ids(**ids(1, **edits))
    assert message in str(error.value)


def test_unknown_look_ups_are_counted_by_feature(encoder: Encoder) -> None:
    row: Row = {name: None for name in encoder.schema.columns}
    rows = [row | {"item": "new", "tags": ["new", "a", "newer"], "user": "a"}, row | {"item": "newest"}]
    assert encoder.unknown(requested(encoder, rows)) == {"item": 2, "tags": 2}


def test_data_that_a_table_refuses_is_named(small: Schema, arrow: ToArrow) -> None:
    (data,) = arrow([{name: None for name in small.columns} | {"item": "new"}]).to_batches()
    with pytest.raises(DataError, match="feature 'item': value 'new' is unknown, and the table refuses it"):
        encoder_of(small, oov="refuse").from_arrow(data)
