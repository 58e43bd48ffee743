from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.batch import Batch, Block
from polyrec.models.schema.distinct import Column, Jagged
from polyrec.models.schema.features import Columns, batch_of, columns_of, deduplicate, to_context_batch
from polyrec.models.schema.schema import Role, Schema
from tests.models.random_batches import random_batch, random_block, random_schema, random_table_rows


def assert_same_columns(one: Columns, other: Columns) -> None:
    assert set(one) == set(other)
    for name in one:
        a, b = one[name], other[name]
        if isinstance(a, Jagged):
            assert isinstance(b, Jagged)
            assert a.values.tobytes() == b.values.tobytes()
            assert a.offsets.tolist() == b.offsets.tolist()
        else:
            assert not isinstance(b, Jagged)
            assert a.dtype == b.dtype
            assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def assert_same_batch(one: Batch, other: Batch) -> None:
    for a, b in ((one.context, other.context), (one.candidate, other.candidate)):
        for name in Block.__dataclass_fields__:
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype
            assert np.array_equal(x, y), name


def repeating(random: np.random.Generator, schema: Schema, rows: int) -> Batch:
    """A plain batch of few different rows per role, in random order."""
    table_rows = random_table_rows(random, schema)

    def block(role: Role) -> Block:
        few = random_block(random, schema, role, table_rows, 4)
        return few.take(random.integers(0, 4, rows))

    return Batch(block("context"), block("candidate"))


def random_groups(random: np.random.Generator, names: list[str]) -> list[list[str]]:
    """Some of the names in some groups."""
    which = random.integers(-1, 3, len(names))
    groups = [[n for n, g in zip(names, which, strict=True) if g == group] for group in range(3)]
    return [g for g in groups if g]


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_the_inverse_is_exact_for_any_groups(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    batch = repeating(random, schema, rows)
    columns = columns_of(batch, schema)
    assert_same_batch(batch_of(columns, schema), batch)
    form = deduplicate(columns, random_groups(random, list(columns)))
    assert_same_columns(form.plain(), columns)
    assert_same_batch(batch_of(form.plain(), schema), batch)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_a_group_holds_each_row_once_and_in_order_of_first_mention(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    columns = columns_of(repeating(random, schema, rows), schema)
    names = list(columns)
    (group,) = deduplicate(columns, [names]).groups
    keys = [tuple(cell(columns[n], r) for n in names) for r in range(rows)]
    expected = list(dict.fromkeys(keys))
    size = group.inverse.max() + 1
    assert [tuple(cell(group.columns[n], r) for n in names) for r in range(size)] == expected
    assert [expected[i] for i in group.inverse] == keys


def cell(column: Column, row: int) -> Any:
    if isinstance(column, Jagged):
        return tuple(column.values[column.offsets[row] : column.offsets[row + 1]].tolist())
    return column[row].tobytes()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
def test_equal_contexts_are_shared_and_exploding_is_the_inverse(seed: int, rows: int, shared: bool) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    batch = repeating(random, schema, rows)
    if shared:  # a batch that shares some contexts already may still hold equal ones
        batch = Batch(batch.context, batch.candidate, random.integers(0, rows, rows))
    found = to_context_batch(batch)
    assert found.context_row is not None
    assert found.context.rows <= 4
    assert_same_batch(found.exploded(), batch.exploded())
    once = to_context_batch(found)
    assert once.context.rows == found.context.rows


def test_a_batch_without_rows_has_no_contexts() -> None:
    random = np.random.default_rng(0)
    schema = random_schema(random)
    batch = random_batch(random, schema, random_table_rows(random, schema), 0)
    assert to_context_batch(batch).context.rows == 0


def test_fewer_bytes_where_rows_repeat() -> None:
    columns: dict[str, Column] = {
        "user": np.repeat(np.arange(10), 100),
        "tags": Jagged(np.zeros(5000, np.int64), np.arange(0, 5001, 5)),
        "price": np.arange(1000, dtype=np.float32),
    }
    form = deduplicate(columns, [["user", "tags"]])
    plain = sum(c.nbytes for c in columns.values())
    assert form.nbytes == 10 * 8 + (50 + 11) * 8 + 1000 * 8 + 1000 * 4
    assert form.nbytes < plain / 4


@pytest.mark.parametrize("groups", [[["a"], ["a"]], [["a", "a"]], [["b"]]])
def test_groups_that_do_not_fit_the_features_are_rejected(groups: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="groups"):
        deduplicate({"a": np.arange(3)}, groups)


def test_columns_of_different_rows_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"columns of \[2, 3\] rows"):
        deduplicate({"a": np.arange(3), "b": np.arange(2)}, [])
