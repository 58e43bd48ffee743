"""The calibration itself runs on a live server in tests/polyrec/test_bench.py; here is what needs none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.calibration import front, main


@given(st.floats(1e-5, 1e-3), st.floats(1e-5, 1e-3), st.lists(st.floats(1.0, 16.0), min_size=1, max_size=8))
def test_what_a_turn_and_a_query_cost_is_found_again(turn: float, query: float, queries: list[float]) -> None:
    found = front([(n, turn / n + query) for n in (1.0, 8.0, *queries)])
    assert found == pytest.approx((turn, query), rel=1e-6)


def test_neither_is_negative() -> None:
    turn, query = front([(1.0, 1e-4), (8.0, 2e-4)])
    assert turn == 0
    assert 1e-4 <= query <= 2e-4


def test_a_plan_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.json"]) == 2
    assert capsys.readouterr().err.strip() == "calibration: no plan file 'nowhere.json'"
