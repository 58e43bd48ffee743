from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.batch import I64, Batch, Block, index_type, take_bags
from polyrec.models.schema.encoder import interleave

Bag = list[int]
Rows = list[tuple[float, int, list[Bag]]]


def block_of(rows: Rows, bags: int) -> Block:
    """The obvious construction: one row after the other."""
    flat = [bag for _, _, own in rows for bag in own]
    offsets = np.cumsum([0, *(len(bag) for bag in flat)]) if bags else np.zeros(1)
    return Block(
        np.array([[x] for x, _, _ in rows], np.float32).reshape(len(rows), 1),
        np.array([[r] for _, r, _ in rows], np.int64).reshape(len(rows), 1),
        np.array([v for bag in flat for v in bag], np.int64),
        offsets.astype(np.int64),
    )


def rows_of(block: Block) -> Rows:
    """The way back."""
    out: Rows = []
    for r in range(block.rows):
        own = []
        for b in range(block.bags):
            start, end = block.bag_offsets[r * block.bags + b : r * block.bags + b + 2]
            own.append(block.bag_values[start:end].tolist())
        out.append((float(block.dense[r, 0]), int(block.ranks[r, 0]), own))
    return out


@st.composite
def many_rows(draw: st.DrawFn, bags: int) -> Rows:
    bag = st.lists(st.integers(0, 9), max_size=4)
    row = st.tuples(st.floats(0, 9, width=16), st.integers(0, 9), st.lists(bag, min_size=bags, max_size=bags))
    return draw(st.lists(row, max_size=6))


@given(st.data(), st.integers(0, 3))
def test_take_returns_the_requested_rows_in_order(data: st.DataObject, bags: int) -> None:
    rows = data.draw(many_rows(bags))
    which = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    taken = block_of(rows, bags).take(np.array(which, np.int64))
    assert rows_of(taken) == [rows[i] for i in which]


@given(st.data(), st.integers(0, 3))
def test_concat_gives_all_rows_in_order(data: st.DataObject, bags: int) -> None:
    parts = data.draw(st.lists(many_rows(bags), min_size=1, max_size=4))
    joined = Block.concat([block_of(rows, bags) for rows in parts])
    assert rows_of(joined) == [row for rows in parts for row in rows]


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6), st.data())
def test_take_bags_returns_the_requested_bags(bags: list[Bag], data: st.DataObject) -> None:
    which = data.draw(st.lists(st.integers(0, len(bags) - 1), max_size=9))
    values = np.array([v for bag in bags for v in bag], np.int64)
    offsets = np.cumsum([0, *map(len, bags)])
    got, ends = take_bags(values, offsets, np.array(which, np.int64))
    assert [got[a:b].tolist() for a, b in pairwise(ends)] == [bags[i] for i in which]


@given(st.integers(0, 4), st.integers(0, 5), st.data())
def test_interleave_orders_bags_row_by_row_feature_by_feature(
    features: int, rows: int, data: st.DataObject
) -> None:
    bag = st.lists(st.integers(0, 9), max_size=4)
    columns = [data.draw(st.lists(bag, min_size=rows, max_size=rows)) for _ in range(features)]
    values, offsets = interleave([jagged(column) for column in columns])
    expected = [columns[f][r] for r in range(rows) for f in range(features)]
    assert [values[a:b].tolist() for a, b in pairwise(offsets)] == expected


def jagged(column: Sequence[Bag]) -> tuple[I64, I64]:
    return np.array([v for bag in column for v in bag], np.int64), np.array([*map(len, column)], np.int64)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A plain batch, or one whose rows share contexts."""
    context = draw(many_rows(2))
    if draw(st.booleans()) or not context:
        candidate = draw(many_rows(1).filter(lambda rows: len(rows) >= len(context)))[: len(context)]
        return Batch(block_of(context, 2), block_of(candidate, 1))
    candidate = draw(many_rows(1))
    of = draw(st.lists(st.integers(0, len(context) - 1), min_size=len(candidate), max_size=len(candidate)))
    return Batch(block_of(context, 2), block_of(candidate, 1), np.array(of, np.int64))


def pairs_of(batch: Batch) -> list[object]:
    """Each row with its context."""
    context, candidate = rows_of(batch.context), rows_of(batch.candidate)
    of = range(batch.rows) if batch.context_row is None else batch.context_row.tolist()
    return [(context[i], row) for i, row in zip(of, candidate, strict=True)]


@given(batches())
def test_an_exploded_batch_has_the_same_rows_without_sharing(batch: Batch) -> None:
    plain = batch.exploded()
    assert plain.context_row is None
    assert plain.context.rows == plain.candidate.rows == batch.rows
    assert pairs_of(plain) == pairs_of(batch)


@given(st.lists(batches(), min_size=1, max_size=4), st.data())
def test_selected_rows_keep_their_contexts_and_their_form(parts: list[Batch], data: st.DataObject) -> None:
    batch = Batch.concat(parts)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, batch.rows - 1)))) if batch.rows else [], int)
    taken, pairs = batch.take(chosen), pairs_of(batch)
    assert pairs_of(taken) == [pairs[row] for row in chosen.tolist()]
    assert (taken.context_row is None) == (batch.context_row is None)
    assert taken.plain_rows == int((chosen < batch.plain_rows).sum())
    if taken.context_row is not None:
        assert taken.context_row[: taken.plain_rows].tolist() == list(range(taken.plain_rows))


@given(st.lists(batches(), min_size=1, max_size=4))
def test_concatenated_batches_keep_every_row_with_its_context(parts: list[Batch]) -> None:
    joined = Batch.concat(parts)
    assert pairs_of(joined) == [pair for part in parts for pair in pairs_of(part)]
    assert joined.context.rows == sum(part.context.rows for part in parts)
    plain = sum(part.rows for part in takewhile(lambda part: part.context_row is None, parts))
    assert joined.plain_rows == (0 if joined.context_row is None else plain)


@given(st.lists(batches(), min_size=1, max_size=3), st.lists(batches(), max_size=2))
def test_concatenated_in_two_steps_is_concatenated_in_one(first: list[Batch], more: list[Batch]) -> None:
    stepwise, at_once = Batch.concat([Batch.concat(first), *more]), Batch.concat([*first, *more])
    assert pairs_of(stepwise) == pairs_of(at_once)
    assert stepwise.plain_rows == at_once.plain_rows


def test_a_block_whose_parts_do_not_fit_is_rejected() -> None:
    one, two = np.zeros((1, 0), np.float32), np.zeros((2, 0), np.int64)
    no_values, no_bags = np.empty(0, np.int64), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="dense has 1 rows, ranks 2"):
        Block(one, two, no_values, no_bags)
    with pytest.raises(ValueError, match="do not divide"):
        Block(np.zeros((2, 0), np.float32), two, no_values, np.zeros(4, np.int64))


def test_contexts_that_do_not_match_rows_need_context_row() -> None:
    row: Rows = [(0.0, 0, [[1]])]
    with pytest.raises(ValueError, match="need context_row"):
        Batch(block_of(row, 1), block_of(row * 2, 1))
    with pytest.raises(ValueError, match="context_row has shape"):
        Batch(block_of(row, 1), block_of(row * 2, 1), np.zeros(3, np.int64))
    for own, plain in ((None, 1), (np.zeros(1, np.int64), 2), (np.zeros(1, np.int64), -1)):
        with pytest.raises(ValueError, match="cannot be plain rows"):
            Batch(block_of(row, 1), block_of(row, 1), own, plain)


@pytest.mark.parametrize("count", [0, 1, 2**31, 2**31 + 1, 2**40])
def test_an_index_type_holds_every_index(count: int) -> None:
    last = np.array([max(count - 1, 0)]).astype(index_type(count))
    assert last[0] == max(count - 1, 0)
    assert (last.itemsize == 4) == (count <= 2**31)
