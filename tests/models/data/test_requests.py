from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data import requests as module
from polyrec.models.data.requests import Requests, rebatch, split_requests

Row = dict[str, Any]
ToArrow = Callable[[Sequence[Row]], pa.Table]

SHARED = ("request", "age", "user", "tags", "history", "code")


def batch_of(table: pa.Table) -> pa.RecordBatch:
    (batch,) = table.combine_chunks().to_batches()
    return batch


def key(row: Row) -> tuple[Any, ...]:
    """Missing and empty are different, and so are zeros of different sign."""
    return tuple(repr(row[name]) for name in SHARED)


def rows_strategy(small_rows: Callable[..., Any]) -> st.SearchStrategy[list[Row]]:
    """Rows of which many share what can be shared."""

    def repeat(rows: list[Row], times: list[int]) -> list[Row]:
        return [r | {"item": str(i)} for r, n in zip(rows, times, strict=True) for i in range(n)]

    some = st.integers(1, 6)
    return some.flatmap(
        lambda n: st.builds(
            repeat,
            st.lists(small_rows(), min_size=n, max_size=n),
            st.lists(st.integers(1, 5), min_size=n, max_size=n),
        )
    )


@given(data=st.data())
def test_a_request_begins_where_something_shared_changes(
    data: st.DataObject, small_rows: Callable[..., Any], arrow: ToArrow
) -> None:
    rows = data.draw(rows_strategy(small_rows))
    whole = batch_of(arrow(rows))
    size = data.draw(st.integers(1, 9))
    batches = [whole.slice(start, size) for start in range(0, len(rows), size)]
    parts = list(split_requests(batches, SHARED))
    names = whole.schema.names
    assert [r for p in parts for r in p.exploded(names).to_pylist()] == whole.to_pylist()
    keys = [key(r) for r in rows]
    starts = [r for r in range(len(rows)) if r == 0 or keys[r] != keys[r - 1]]
    lengths = [n for p in parts for n in p.lengths.tolist()]
    assert lengths == np.diff([*starts, len(rows)]).tolist()
    assert all(p.shared.num_rows == p.lengths.size for p in parts)
    concat_batches = Requests.concat(parts)
    assert concat_batches.exploded(names).to_pylist() == whole.to_pylist()
    assert concat_batches.rows == len(rows)


@given(data=st.data())
def test_filtered_requests_keep_the_rows_wanted(
    data: st.DataObject, small_rows: Callable[..., Any], arrow: ToArrow
) -> None:
    rows = data.draw(rows_strategy(small_rows))
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    found = Requests.concat(list(split_requests([batch_of(arrow(rows))], SHARED))).filter(wanted)
    names = arrow(rows).schema.names
    assert found.exploded(names).to_pylist() == [
        r for r, w in zip(arrow(rows).to_pylist(), wanted, strict=True) if w
    ]
    assert found.lengths.min(initial=1) > 0


@given(data=st.data())
def test_pieces_are_whole_requests_in_order(
    data: st.DataObject, small_rows: Callable[..., Any], arrow: ToArrow
) -> None:
    rows = data.draw(rows_strategy(small_rows))
    requests = Requests.concat(list(split_requests([batch_of(arrow(rows))], SHARED)))
    size = data.draw(st.integers(1, 12))
    pieces = list(requests.pieces(size))
    assert np.concatenate([p.lengths for p in pieces]).tolist() == requests.lengths.tolist()
    names = arrow(rows).schema.names
    assert [r for p in pieces for r in p.exploded(names).to_pylist()] == arrow(rows).to_pylist()
    assert all(p.rows < size + requests.lengths.max() for p in pieces)


def test_a_request_longer_than_the_limit_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 8)
    column = pa.array([7] * 20)
    whole = pa.RecordBatch.from_arrays([column, pa.array(range(20))], ["request", "item"])
    parts = list(split_requests([whole.slice(start, 5) for start in range(0, 20, 5)], ["request"]))
    assert [p.lengths.tolist() for p in parts] == [[10], [10]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 12))
def test_rebatched_rows_come_in_batches_of_one_size(sizes: list[int], rows: int) -> None:
    whole = pa.RecordBatch.from_arrays([pa.array(range(sum(sizes)))], ["i"])
    ends = np.cumsum(sizes)
    batches = [whole.slice(end - size, size) for size, end in zip(sizes, ends, strict=True)]
    found = list(rebatch(batches, rows))
    assert [i for b in found for i in b.column("i").to_pylist()] == list(range(sum(sizes)))
    assert [b.num_rows for b in found[:-1]] == [rows] * (len(found) - 1)
    assert 0 < found[-1].num_rows <= rows
