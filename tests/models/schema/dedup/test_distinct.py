from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.mixing import mix
from polyrec.models.schema.dedup.distinct import Column, Jagged, distinct, row_changes, take

Row = tuple[float, int, list[int]]

# Few values, so that rows repeat; zeros of both signs and several not-a-numbers, which bits tell apart.
NANS = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32).tolist()
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, *NANS])
ROWS = st.lists(st.tuples(NUMBERS, st.integers(0, 2), st.lists(st.integers(0, 1), max_size=3)), max_size=30)


def columns_of(rows: list[Row]) -> list[Column]:
    lists = [bag for _, _, bag in rows]
    return [
        np.array([x for x, _, _ in rows], np.float32),
        np.array([[i, i // 2] for _, i, _ in rows], np.int64).reshape(len(rows), 2),
        Jagged(
            np.array([v for bag in lists for v in bag], np.int64),
            np.cumsum([0, *map(len, lists)]).astype(np.int64),
        ),
    ]


def key(row: Row) -> Any:
    x, i, bag = row
    return np.float32(x).tobytes(), i, tuple(bag)


@given(ROWS)
def test_distinct_rows_stand_for_all_rows_equal_to_them(rows: list[Row]) -> None:
    first, inverse = distinct(columns_of(rows), len(rows))
    keys = [key(row) for row in rows]
    expected = list(dict.fromkeys(keys))
    assert [keys[r] for r in first] == expected
    assert first.tolist() == [keys.index(k) for k in expected]
    assert [expected[i] for i in inverse] == keys


@given(ROWS)
def test_a_row_changes_where_it_differs_from_the_one_before(rows: list[Row]) -> None:
    keys = [key(row) for row in rows]
    expected = [r == 0 or keys[r] != keys[r - 1] for r in range(len(rows))]
    assert row_changes(columns_of(rows), len(rows)).tolist() == expected


@given(ROWS, st.data())
def test_rows_are_taken_from_every_kind_of_column(rows: list[Row], data: st.DataObject) -> None:
    which = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    taken = [take(c, np.array(which, np.int64)) for c in columns_of(rows)]
    for got, wanted in zip(taken, columns_of([rows[i] for i in which]), strict=True):
        if isinstance(got, Jagged):
            assert isinstance(wanted, Jagged)
            assert got.values.tobytes() == wanted.values.tobytes()
            assert got.offsets.tolist() == wanted.offsets.tolist()
        else:
            assert not isinstance(wanted, Jagged)
            assert got.tobytes() == wanted.tobytes()


def test_rows_with_colliding_hashes_are_distinguished() -> None:
    """The first hash of a row (a, b) is mix(mix(mix(0) ^ a) ^ b): b can be chosen so that two agree."""
    salt = mix(np.zeros(1, np.uint64))
    a = np.array([1, 2, 1], np.uint64)
    inner = mix(salt ^ a)
    b = inner ^ np.uint64(77)
    assert np.unique(inner ^ b).size == 1
    first, inverse = distinct([a, b], 3)
    assert first.tolist() == [0, 1]
    assert inverse.tolist() == [0, 1, 0]


def test_lists_that_flatten_alike_are_different_rows() -> None:
    offsets = np.array([0, 1, 3, 5, 6], np.int64)
    jagged = Jagged(np.array([1, 2, 3, 1, 2, 3], np.int64), offsets)  # [1] [2 3] [1 2] [3]
    first, inverse = distinct([jagged], 4)
    assert first.tolist() == inverse.tolist() == [0, 1, 2, 3]


def test_without_columns_all_rows_are_equal() -> None:
    first, inverse = distinct([np.empty((3, 0), np.float32)], 3)
    assert first.tolist() == [0]
    assert inverse.tolist() == [0, 0, 0]
