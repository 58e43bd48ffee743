from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.updates.last import last_of_equal

NUMBERS = [(np.int64, 2**40), (np.int32, 2**31 - 1)]


@pytest.mark.parametrize(("number", "most"), NUMBERS)
@given(data=st.data())
def test_last_values_of_equal_rows_are_those_that_a_dictionary_keeps(
    number: type[np.signedinteger[Any]], most: int, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, most) | st.integers(0, 20), max_size=200))
    values = np.arange(3 * len(rows), dtype=np.float32).reshape(-1, 3)
    kept: dict[int, list[float]] = {}
    for row, value in zip(rows, values.tolist(), strict=True):
        kept[row] = value
    distinct, last = last_of_equal(np.array(rows, number), values)
    assert distinct.tolist() == sorted(kept)
    assert last.tolist() == [kept[row] for row in sorted(kept)]


@pytest.mark.parametrize("rows", [[], [7], [0, 3, 9]])
def test_distinct_ascending_rows_are_not_copied(rows: list[int]) -> None:
    ids, values = np.array(rows, np.int64), np.zeros((len(rows), 4), np.uint8)
    distinct, last = last_of_equal(ids, values)
    assert distinct is ids
    assert last is values
