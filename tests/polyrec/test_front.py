from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.front import ROWS, line


@given(st.floats(1e-6, 1e-3), st.floats(1e-9, 1e-5))
def test_a_line_is_found_again(query_s: float, row_s: float) -> None:
    front = line(ROWS, [query_s + row_s * rows for rows in ROWS])
    assert front.query_s == pytest.approx(query_s, rel=1e-3)
    assert front.row_s == pytest.approx(row_s, rel=1e-3)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_no_cost_is_negative(costs: list[float]) -> None:
    front = line(ROWS, costs)
    assert front.query_s >= 0
    assert front.row_s >= 0


def test_costs_that_fall_with_rows_are_all_the_querys() -> None:
    front = line(ROWS, [3e-4, 2e-4, 1e-4])
    assert front.row_s == 0
    assert 1e-4 <= front.query_s <= 3e-4
