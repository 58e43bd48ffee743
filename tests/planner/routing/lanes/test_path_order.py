"""The paths of usual and of large queries equal those of a search over all paths and sizes."""

from __future__ import annotations

from itertools import pairwise
from math import log
from statistics import NormalDist

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.lanes.path import PathSpec, PathState
from polyrec.planner.routing.lanes.path_order import BUSY, large_order, large_path, usual_order
from polyrec.planner.routing.path_option import path_options
from polyrec.planner.routing.router_state import RouterState
from tests.planner.routing.servers import cpu_lanes, line

TIMES = st.tuples(st.floats(1e-4, 5e-3), st.floats(1e-7, 1e-4), st.floats(1.05, 3.0))
"""Seconds of a batch and of a row, and the tail as a multiple of the median."""
PATHS = st.lists(st.tuples(st.floats(0.01, 0.9), TIMES), min_size=1, max_size=4)
TINY = 1e-300
"""Values below have few digits: a probability far beyond the budget, down to 0."""
Figures = list[tuple[float, tuple[float, float, float]]]


def state_of(figures: Figures, kind: str = "process") -> RouterState:
    """A server with one lane. figures: quality and times of each path."""
    paths = tuple(
        PathSpec(f"p{i}@cpu", "cpu", quality, line(fixed_s, row_s, tail))
        for i, (quality, (fixed_s, row_s, tail)) in enumerate(figures)
    )
    lanes = cpu_lanes(1, kind)  # type: ignore[arg-type]
    return RouterState(paths, lanes, Routing(policy="priced"), Limits(), 0.0)


SECONDS = st.lists(
    st.tuples(st.floats(0.01, 0.9), st.floats(1e-6, 1e-3), st.floats(1e-6, 1e-3)), min_size=1, max_size=5
)


@given(SECONDS, st.floats(0, 1e5), st.floats(0, 1))
def test_usual_order_has_all_paths_that_are_worth_their_speed(figures, lane_rows_s, lost):
    paths = state_of([(quality, (1e-4, 1e-6, 1.3)) for quality, _, _ in figures]).paths
    row_s, full_row_s = (dict(enumerate(seconds)) for seconds in list(zip(*figures, strict=True))[1:])

    def avoidable_share(saved_share: float) -> float:
        return lost * saved_share

    order = usual_order(paths, range(len(paths)), row_s, full_row_s, lane_rows_s, avoidable_share)

    def value(p: int) -> float:
        return paths[p].value

    assert [value(p) for p in order] == sorted((value(p) for p in order), reverse=True)
    assert all(row_s[p] > row_s[q] for p, q in pairwise(order))
    by_value = sorted(row_s, key=lambda p: (-value(p), row_s[p]))
    full = max(by_value, key=lambda p: value(p) / full_row_s[p])
    quick = max(by_value, key=lambda p: value(p) / row_s[p])
    pays = lost * (1 - row_s[quick] / row_s[full]) > 1 - value(quick) / value(full)
    ends = [full, quick] if lane_rows_s * full_row_s[full] < BUSY and pays else [full]
    least = min(value(end) for end in ends)
    assert all(value(p) >= least for p in order)
    for p in row_s:
        is_dominated = any(value(q) >= value(p) and row_s[q] <= row_s[p] for q in row_s if q != p)
        is_beyond = value(p) <= least and p not in ends
        assert p in order or is_dominated or is_beyond


def value_per_s(lane: LaneState, path: PathState, rows: int, budget_s: float) -> float:
    """Value of a query alone times its probability to be in time, per second: batch by batch."""
    seconds, left = 0.0, rows
    while left:
        batch_rows = min(left, lane.max_rows[path.index])
        seconds += path.latency.median[batch_rows]
        left -= batch_rows
    sigma = log(path.latency.tail[rows] / path.latency.median[rows]) / NormalDist().inv_cdf(0.99)
    return NormalDist(log(seconds), sigma).cdf(log(budget_s)) * path.value / seconds


@given(SECONDS, st.data())
def test_large_order_ends_with_its_path_and_falls_in_value_and_time(figures, data):
    paths = state_of([(quality, (1e-4, 1e-6, 1.3)) for quality, _, _ in figures]).paths
    row_s = {p: seconds for p, (_, seconds, _) in enumerate(figures)}
    usual = sorted(data.draw(st.sets(st.sampled_from(range(len(paths))))), key=lambda p: -paths[p].value)
    large = data.draw(st.sampled_from(range(len(paths))))
    order = large_order(paths, usual, large, row_s)
    assert order[-1] == large
    assert all(paths[p].value >= paths[q].value and row_s[p] > row_s[q] for p, q in pairwise(order))
    for p in usual:
        is_better = any(paths[q].value >= paths[p].value and row_s[q] <= row_s[p] for q in order if q != p)
        # one that is faster than the last would never be followed by it
        is_excluded = paths[p].value <= paths[large].value or row_s[p] <= row_s[large]
        assert p in order or is_better or is_excluded


@given(PATHS, st.floats(1e-3, 0.05), st.sampled_from(["inline", "process"]))
@example([(0.5, (1.3e-3, 5.8e-5, 2.0)), (0.75, (4.5e-3, 2.7e-5, 1.25))], 1.95e-3, "inline")  # values of 0
def test_the_path_of_large_queries_is_the_best_at_the_largest_size(figures, budget_s, kind):
    state = state_of(figures, kind)
    (lane,) = state.lanes
    rows_in_time = [
        rows
        for rows in range(1, state.paths[0].latency.rows + 1)
        if any(value_in_time(lane, path, rows, budget_s) for path in state.paths)
    ]
    assume(rows_in_time)
    largest = max(rows_in_time)
    at_largest = [value_per_s(lane, path, largest, budget_s) for path in state.paths]
    found = large_path(lane, state.paths, lane.paths, budget_s)
    if found is None:
        assert at_largest[lane.fastest] == pytest.approx(max(at_largest))
        return
    assert at_largest[found.path] == pytest.approx(max(at_largest))
    path, fastest = state.paths[found.path], state.paths[lane.fastest]

    def values(rows: int) -> tuple[float, float]:
        return value_per_s(lane, path, rows, budget_s), value_per_s(lane, fastest, rows, budget_s)

    value, other = values(found.from_rows)
    assert value > other * (1 - 1e-9) - TINY
    if found.from_rows > 1:
        value, other = values(found.from_rows - 1)
        assert value < other * (1 + 1e-9) + TINY


def value_in_time(lane: LaneState, path: PathState, rows: int, budget_s: float) -> bool:
    """Whether a query alone takes at most budget_s seconds at the median."""
    batches, rest = divmod(rows, lane.max_rows[path.index])
    median = path.latency.median
    return batches * median[lane.max_rows[path.index]] + (median[rest] if rest else 0) <= budget_s


@given(PATHS, st.lists(st.integers(1, 2000), min_size=1, max_size=8))
@example([(0.35, (2e-3, 1.5e-3, 1.5)), (0.34, (1e-2, 3e-4, 1.5))], [2, 3, 30, 100])
def test_a_lanes_rate_is_that_of_queries_on_the_fastest_of_their_options(figures, sizes):
    state = state_of(figures)
    (lane,) = state.lanes
    state.observed.size_groups = sizes
    state.refresh()

    def seconds(path: int, rows: int) -> float:
        latency, merge_rows = state.paths[path].latency, lane.merge_rows[path]
        batch_rows = min(max(rows, merge_rows), lane.max_rows[path])
        factor = latency.mean_factor * lane.correction.undisturbed[path]
        return rows * latency.median[batch_rows] / batch_rows * factor

    usual = [rows for rows in sizes if rows < lane.large_rows]
    large = [rows for rows in sizes if rows >= lane.large_rows]
    total_s = min(sum(seconds(o.path, rows) for rows in usual) for o in lane.options)
    if large:
        total_s += min(sum(seconds(o.path, rows) for rows in large) for o in lane.large_options)
    assert lane.rate == pytest.approx(sum(sizes) / total_s)


def test_a_last_option_that_is_slower_in_large_batches_does_not_lower_the_lanes_rate():
    state = state_of([(0.66, (6.4e-4, 9.5e-7, 1.3)), (0.65, (9e-5, 2.1e-6, 1.5))])
    (lane,) = state.lanes
    state.observed.size_groups = [200]
    lane.options = path_options([0, 1], state.paths, lane.max_rows, lane.merge_rows)
    merged_s, quick_s = (state.row_times.elapsed_s(lane, p) for p in (0, 1))
    assert merged_s < quick_s
    assert state.row_times.rate(lane) == pytest.approx(1 / merged_s)
