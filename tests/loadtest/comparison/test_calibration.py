"""Calibration of costs; it runs on a live server in tests/polyrec/cli/measure/test_bench.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.loadtest.comparison.calibration import front, main, relative_line


@given(st.floats(1e-5, 1e-3), st.floats(1e-5, 1e-3), st.lists(st.floats(1.0, 16.0), min_size=1, max_size=8))
def test_costs_of_turn_and_query_are_recovered(turn: float, query: float, queries: list[float]) -> None:
    found = front([(n, turn / n + query) for n in (1.0, 8.0, *queries)])
    assert found == pytest.approx((turn, query), rel=1e-6)


def test_costs_of_turn_and_query_are_not_negative() -> None:
    turn, query = front([(1.0, 1e-4), (8.0, 2e-4)])
    assert turn == 0
    assert 1e-4 <= query <= 2e-4


ROWS = (1, 23, 270)


@given(st.floats(1e-6, 1e-3), st.floats(1e-9, 1e-5))
def test_a_line_is_recovered(query_s: float, row_s: float) -> None:
    found = relative_line(ROWS, [query_s + row_s * rows for rows in ROWS])
    assert found == pytest.approx((query_s, row_s), rel=1e-3)


@given(st.lists(st.floats(1e-6, 1), min_size=3, max_size=3))
def test_no_line_without_a_negative_cost_is_nearer(costs: list[float]) -> None:
    x, y = np.array(ROWS), np.array(costs)

    def error(a: float, b: float) -> float:
        return float((((a + b * x) / y - 1) ** 2).sum())

    # the least of the free line and of those with one of the two nought
    free = np.linalg.lstsq(np.stack((1 / y, x / y), 1), np.ones(3), rcond=None)[0]
    flat = (1 / y).sum() / (1 / y**2).sum()
    through_zero = (x / y).sum() / ((x / y) ** 2).sum()
    lines = [(flat, 0.0), (0.0, through_zero)] + ([tuple(free)] if min(free) >= 0 else [])
    found = relative_line(ROWS, costs)
    assert min(found) >= 0
    assert error(*found) <= min(error(*each) for each in lines) + 1e-9


def test_costs_of_nothing_are_a_line_too() -> None:
    assert relative_line(ROWS, [0.0, 0.0, 0.0]) == pytest.approx((0.0, 0.0), abs=2e-9)


def test_costs_that_fall_with_rows_are_all_the_querys() -> None:
    query_s, row_s = relative_line(ROWS, [3e-4, 2e-4, 1e-4])
    assert row_s == 0
    assert 1e-4 <= query_s <= 3e-4


def test_a_missing_plan_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.json"]) == 2
    assert capsys.readouterr().err.strip() == "calibration: no plan file 'nowhere.json'"
