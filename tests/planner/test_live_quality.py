from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.live_quality import following_values, reference_path
from polyrec.planner.quality import MIN_WORTH

VALUES = {"table@cpu": 0.25, "hybrid@cpu": 0.25, "dhe@cpu": 0.20}
OFFSET = st.floats(-1, 1)


def test_an_interval_that_holds_the_offline_difference_moves_nothing() -> None:
    ranges = {"hybrid@cpu": (-0.01, 0.02), "dhe@cpu": (-0.2, 0.1)}
    assert following_values(VALUES, ranges, 0.2) == VALUES


def test_a_value_moves_to_the_nearest_end_of_its_interval() -> None:
    found = following_values(VALUES, {"hybrid@cpu": (0.01, 0.03), "dhe@cpu": (-0.04, -0.03)}, 0.2)
    assert found == pytest.approx({"table@cpu": 0.25, "hybrid@cpu": 0.26, "dhe@cpu": 0.21})


def test_no_value_moves_by_more_than_the_bound() -> None:
    found = following_values(VALUES, {"hybrid@cpu": (5.0, 9.0), "dhe@cpu": (-9.0, -5.0)}, 0.2)
    assert found == pytest.approx({"table@cpu": 0.25, "hybrid@cpu": 0.30, "dhe@cpu": 0.15})


def test_a_path_worse_than_a_constant_is_still_worth_something() -> None:
    values = {"table@cpu": 0.3, "dhe@cpu": 0.05}
    found = following_values(values, {"dhe@cpu": (-0.5, -0.4)}, 0.5)
    assert found == pytest.approx({"table@cpu": 0.3, "dhe@cpu": MIN_WORTH * 0.3})


def test_the_reference_is_the_first_of_the_best() -> None:
    assert reference_path(VALUES) == "table@cpu"


@given(
    st.lists(st.floats(1e-6, 1), min_size=1, max_size=5),
    st.lists(st.tuples(OFFSET, OFFSET), max_size=5),
    st.floats(0, 0.5),
)
def test_values_stay_positive_within_the_bound_and_near_their_interval(
    worths: list[float], ends: list[tuple[float, float]], bound: float
) -> None:
    values = {f"p{i}": worth for i, worth in enumerate(worths)}
    best = max(worths)
    ranges = {f"p{i}": (min(pair), max(pair)) for i, pair in enumerate(ends)}
    found = following_values(values, ranges, bound)
    for name, value in values.items():
        low, high = ranges.get(name, (-9, 9))
        assert found[name] > 0
        assert abs(found[name] - value) <= bound * best + max(0, 0.01 * best - value) + 1e-12
        if low <= value - best <= high:
            assert found[name] == value
        elif found[name] > value:
            assert found[name] - best <= max(low, -0.99 * best) + 1e-12
        elif found[name] < value:
            assert found[name] - best >= high - 1e-12
