"""The paths of a lane: none is used that is worth less than its time at any load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.router_state import RouterState
from tests.planner.routing.servers import cpu_lanes, line

LADDERS = st.lists(
    st.tuples(st.floats(0.01, 0.5), st.floats(1e-7, 1e-5)), min_size=1, max_size=6, unique_by=lambda p: p[1]
)


def ladder(figures: list[tuple[float, float]], query_s: float) -> RouterState:
    """An inline lane. figures: quality and seconds a row of each path."""
    paths = tuple(PathSpec(f"w{i}@cpu", "cpu", q, line(1e-4, row_s)) for i, (q, row_s) in enumerate(figures))
    routing = Routing(policy="priced", query_s=query_s)
    return RouterState(paths, cpu_lanes(1, "inline"), routing, Limits(), 0.0)


@given(LADDERS, st.floats(0.0, 5e-4))
def test_the_fastest_path_is_the_one_of_most_value_a_second(figures, query_s):
    state = ladder(figures, query_s)
    (lane,) = state.lanes
    row_s = [state.row_times.lane_s(lane, p) for p in lane.paths]
    values = [path.value for path in state.paths]
    assert values[lane.fastest] / row_s[lane.fastest] == pytest.approx(
        max(value / seconds for value, seconds in zip(values, row_s, strict=True))
    )
    assert lane.order[-1] == lane.fastest
    assert [values[p] for p in lane.order] == sorted((values[p] for p in lane.order), reverse=True)
    assert [row_s[p] for p in lane.order] == sorted((row_s[p] for p in lane.order), reverse=True)


def test_the_front_bounds_the_capacity_of_lanes_outside_the_event_loop():
    def state(query_s: float, row_s: float) -> RouterState:
        path = PathSpec("w@cpu", "cpu", 0.3, line(1e-4, 1e-6))
        routing = Routing(policy="priced", query_s=query_s, row_s=row_s)
        return RouterState((path,), cpu_lanes(4), routing, Limits(), 0.0)

    free, slow = state(0.0, 0.0), state(1e-3, 1e-5)
    lanes_rate = sum(lane.rate for lane in free.usable)
    assert free.total_rate == lanes_rate
    assert slow.total_rate == pytest.approx(1 / (1e-5 + 1e-3 / slow.observed.mean_rows))
    assert slow.total_rate < lanes_rate


@pytest.mark.parametrize(
    ("query_s", "at_rest", "past_capacity"), [(2e-4, ["w1"], ["w1"]), (0.0, ["w1", "w0"], ["w0"])]
)
def test_a_path_that_is_hardly_faster_and_worth_less_is_not_used(query_s, at_rest, past_capacity):
    """Where the front takes most of a query's time, the narrow path frees less than it loses."""
    state = ladder([(0.306, 1e-6), (0.319, 1.2e-6)], query_s)
    for rows_s, expected in ((0.0, at_rest), (1e8, past_capacity)):
        state.observed.rows_s = rows_s
        state.refresh()
        assert [state.paths[p].name for p in state.lanes[0].order] == [f"{name}@cpu" for name in expected]
