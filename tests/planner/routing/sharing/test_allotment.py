"""Allotted time: the optimum of its linear program, and never less than what is guaranteed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from polyrec.planner.routing.sharing.allotment import TimeDemand, allot, gain, rows_left

PATHS = st.lists(
    st.tuples(st.floats(0.01, 1.0), st.floats(1e-5, 1e-2)), min_size=1, max_size=4, unique_by=lambda p: p[1]
)


def information(demand: TimeDemand, seconds: float) -> float:
    """Returns the information that the model gains from so much time."""
    found = 0.0
    for segment in gain(demand.rows_s, demand.paths):
        used = min(seconds, segment.seconds)
        found += used * segment.slope
        seconds -= used
    return found


def needed(demand: TimeDemand) -> float:
    """Seconds that answer all rows on the most efficient path."""
    return gain(demand.rows_s, demand.paths)[0].seconds


def solved(capacity: float, demands: list[TimeDemand]) -> float:
    """The optimum by a solver, with at least the information of the guaranteed time for each."""
    variables = [(m, v, s) for m, d in enumerate(demands) for v, s in d.paths]
    cost = np.asarray([s for _, _, s in variables])
    of = np.asarray([m for m, _, _ in variables])
    value = np.asarray([v for _, v, _ in variables])
    weight = np.asarray([demands[m].weight for m in of])
    rows, limits = [cost], [capacity]
    for m, demand in enumerate(demands):
        least = information(demand, min(demand.guaranteed, demand.lanes, needed(demand)))
        rows += [1.0 * (of == m), cost * (of == m), -value * (of == m)]
        limits += [demand.rows_s, demand.lanes, -least]
    result = linprog(-weight * value, A_ub=np.stack(rows), b_ub=limits, method="highs")
    assert result.status == 0
    return -result.fun


@settings(max_examples=200, deadline=None)
@given(
    paths=st.lists(PATHS, min_size=1, max_size=3),
    rates=st.lists(st.floats(1.0, 5000.0), min_size=3, max_size=3),
    weights=st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3),
    guaranteed=st.lists(st.floats(0.0, 1 / 3), min_size=3, max_size=3),
    lanes=st.lists(st.integers(1, 2), min_size=3, max_size=3),
    capacity=st.integers(1, 2),
)
def test_allotted_time_is_the_optimum(paths, rates, weights, guaranteed, lanes, capacity):
    demands = [
        TimeDemand(rate, tuple(of), n, weight, g * capacity)
        for of, rate, weight, g, n in zip(paths, rates, weights, guaranteed, lanes, strict=False)
    ]
    given_s = allot(capacity, demands)
    assert sum(given_s) <= capacity * (1 + 1e-9)
    found = sum(d.weight * information(d, t) for d, t in zip(demands, given_s, strict=True))
    assert found == pytest.approx(solved(capacity, demands), rel=1e-6, abs=1e-6)
    for demand, seconds in zip(demands, given_s, strict=True):
        assert seconds >= min(demand.guaranteed, demand.lanes, needed(demand)) - 1e-9


def test_time_that_one_does_not_want_goes_to_the_others():
    small = TimeDemand(10, ((0.5, 1e-3),), 1, 1.0, 0.5)
    large = TimeDemand(10_000, ((0.5, 1e-3),), 1, 1.0, 0.5)
    assert allot(1.0, [small, large]) == pytest.approx([0.01, 0.99])


def test_weights_divide_only_time_that_is_not_guaranteed():
    one = TimeDemand(10_000, ((0.5, 1e-3),), 1, 1.0, 0.25)
    other = TimeDemand(10_000, ((0.5, 1e-3),), 1, 2.0, 0.25)
    assert allot(1.0, [one, other]) == pytest.approx([0.25, 0.75])


def test_rows_are_left_once_the_most_efficient_path_is_full():
    demand = TimeDemand(1000, ((0.5, 1e-3), (0.6, 4e-3)), 4, 1.0, 0.0)
    assert rows_left(demand, 0.25) == pytest.approx(750)
    assert rows_left(demand, 2.0) == 0
    assert rows_left(TimeDemand(7, (), 0, 1.0, 0.0), 1.0) == 7
