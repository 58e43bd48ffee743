"""Feasibility, and degraded reasons: failure only if a lane died or lost work, else what bound the choice."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.planner.routing.feasibility import (
    BUDGET_KEPT,
    FreeLane,
    free_lane,
    later_rows,
    leaves_rest_feasible,
    usually_due_s,
)
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.loss_backoff import BUSY, MAX_FILL_SHARE
from polyrec.planner.routing.query import NO_MISSES, Misses, Reason
from tests.planner.routing import reference
from tests.planner.routing.random_events import ROWS, SERVERS
from tests.planner.routing.servers import GPU_HYBRID, GPU_LANE, TABLE, RouterDriver, cpu_lanes, router

WAITING = st.tuples(
    ROWS,
    st.sampled_from([0.01, 0.02, 0.05, 10.0]),
    st.integers(0, 2),
    st.just(False),
    st.sampled_from([NO_MISSES, NO_MISSES, NO_MISSES, Misses(3)]),
)


def two_devices() -> RouterDriver:
    """The best path is on the GPU only."""
    return RouterDriver(router((GPU_HYBRID, TABLE), (GPU_LANE, *cpu_lanes(1))))


def test_a_dead_lane_gives_reason_failure():
    driver = two_devices()
    driver.router.lane_down(0)
    query = driver.submit(23, 0.1)
    driver.run(0.05)
    assert driver.router.state.path_specs[query.path].name == "table@cpu"
    assert query.reason is Reason.FAILURE


def test_a_lost_batch_gives_reason_failure_if_a_cheaper_path_answers():
    driver = two_devices()
    query = driver.submit(23, 0.1)
    driver.turn()
    assert list(driver.running) == [0]
    driver.router.lane_down(0)
    driver.failed(0)
    driver.run(0.05)
    assert (driver.ends[query], query.reason) == (["answered"], Reason.FAILURE)


def test_a_lane_that_only_stalls_is_no_failure():
    driver = two_devices()
    query = driver.submit(23, 0.1)
    driver.turn()
    driver.now_s = 0.05  # far beyond its tail: given up, and queued again for the other lane
    driver.turn()
    assert 1 in driver.running
    driver.now_s += driver.running[1].median_s
    driver.done(1)
    assert driver.ends[query] == ["answered"]
    assert driver.router.state.path_specs[query.path].name == "table@cpu"
    assert query.reason is Reason.DEADLINE


def test_a_slow_best_path_gives_reason_load_or_deadline_but_not_failure():
    """Three batches of the only lane took fifty times their time; nothing failed."""
    driver = RouterDriver(router(lanes=cpu_lanes(1, "inline")))
    for slow in (1, 1, 1, 50, 50, 50, 50):
        driver.submit(23, 0.5)
        driver.turn()
        dispatch = driver.running[0]
        took_s = slow * driver.router.state.paths[dispatch.path].latency.median[23]
        driver.now_s += took_s
        driver.done(0, took_s)
    query = driver.submit(23, 0.01)
    driver.turn()
    assert driver.router.state.path_specs[query.path].name == "table@cpu"
    assert query.reason is Reason.DEADLINE


@pytest.mark.parametrize(
    ("budget_s", "at_once", "reason"), [(0.00095, 1, Reason.DEADLINE), (0.002, 8, Reason.LOAD)]
)
def test_reason_is_deadline_if_an_idle_server_could_not_choose_the_best_path_either(
    budget_s, at_once, reason
):
    """The best path takes 0.86 ms at the 99th percentile, and must leave time for another query."""
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    for n in range(20):
        driver.now_s = n / 10
        driver.router.tick(driver.now_s)
        queries = [driver.submit(23, budget_s) for _ in range(at_once)]
        driver.run(driver.now_s + 0.05)
    assert driver.ends[queries[0]] == ["answered"]
    assert driver.router.state.path_specs[queries[0].path].name == "table@cpu"
    assert queries[0].reason is reason


def test_reason_is_load_if_only_the_shorter_budgets_of_others_rule_out_the_best_path():
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    driver.router.state.observed.budget_s = 0.0007
    query = driver.submit(23, 0.1)
    driver.turn()
    assert driver.router.state.path_specs[query.path].name == "table@cpu"
    assert query.reason is Reason.LOAD


def test_a_probe_on_a_worse_path_gives_reason_probe():
    driver = RouterDriver(router(lanes=cpu_lanes(2)))
    driver.router.lane_down(0)
    driver.router.lane_up(0, 0.0)
    query = driver.submit(23, 0.0007)  # too little time for the best path
    driver.turn()
    copy = driver.running[0]
    assert (copy.probe, copy.reason) == (True, Reason.PROBE)
    assert driver.router.state.path_specs[copy.path].name == "table@cpu"
    driver.now_s += copy.median_s
    driver.done(0)
    assert (driver.ends[query], query.reason) == (["answered"], Reason.PROBE)


def test_a_probe_with_time_for_it_is_on_the_best_path():
    driver = RouterDriver(router(lanes=cpu_lanes(2)))
    driver.router.lane_down(0)
    driver.router.lane_up(0, 0.0)
    driver.submit(23, 0.1)
    driver.turn()
    assert driver.running[0].probe
    assert [(d.reason, driver.router.state.path_specs[d.path].name) for d in driver.running.values()] == [
        (Reason.BEST, "hybrid@cpu"),
        (Reason.BEST, "hybrid@cpu"),
    ]


def test_one_delayed_batch_does_not_rule_out_the_best_path():
    """A preemption of 6 ms in a second with a budget of 10 ms, at a tenth of the capacity."""
    driver = RouterDriver(router(lanes=cpu_lanes(1, "inline")))
    paths = []
    for i in range(1000):
        driver.now_s = i / 500
        query = driver.submit(23, 0.010)
        driver.turn()
        dispatch = driver.running[0]
        took_s = dispatch.median_s + (0.006 if i == 500 else 0.0)
        driver.now_s += took_s
        driver.done(0, took_s)
        assert driver.ends[query] == ["answered"]
        if i % 50 == 49:
            driver.router.tick(driver.now_s)
        paths.append(driver.router.state.path_specs[dispatch.path].name)
    assert set(paths[500:]) == {"hybrid@cpu"}


def path_beside_others(
    rows_s: float, square: float, budget_s: float, reserve_s: float = 0.0, utilization: float = 0.0
) -> str:
    """The path of a query that has time, where others of that budget arrive meanwhile."""
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    observed = driver.router.state.observed
    observed.urgent_s = rows_s
    observed.possible_s = rows_s / observed.urgent_mean
    observed.urgent_square, observed.budget_s = square, budget_s
    driver.router.state.reserve_s = reserve_s
    driver.router.state.loss_backoff.set_load(utilization, 1.0)
    driver.submit(20, 1.0)
    dispatch = driver.router.next(0, 0.0)
    assert dispatch is not None
    return driver.router.state.path_specs[dispatch.path].name


def test_the_best_path_leaves_time_for_what_usually_arrives_and_for_a_burst_of_it():
    state = RouterDriver(router(lanes=cpu_lanes(1))).router.state
    best, usual_rows = state.paths[state.lanes[0].order[0]], int(state.observed.urgent_mean)
    own_rows = best.latency.median[20] * state.lanes[0].rate * state.front_factor
    # the batch, then a usual query: at rest within its budget, on busy lanes within 60% of it
    needed_s = own_rows / state.total_rate + state.service_times[usual_rows]
    assert path_beside_others(0.0, 0.0, 1.05 * needed_s) == "hybrid@cpu"
    assert path_beside_others(0.0, 0.0, 0.95 * needed_s) == "table@cpu"
    enough_s = needed_s / MAX_FILL_SHARE
    assert path_beside_others(0.0, 0.0, 1.05 * enough_s, utilization=BUSY) == "hybrid@cpu"
    assert path_beside_others(0.0, 0.0, 0.95 * enough_s, utilization=BUSY) == "table@cpu"
    # and within what random arrivals leave of it
    assert path_beside_others(0.0, 0.0, 2 * enough_s, 1.35 * enough_s) == "hybrid@cpu"
    assert path_beside_others(0.0, 0.0, 2 * enough_s, 1.45 * enough_s) == "table@cpu"
    # the same mean in few large queries
    assert path_beside_others(100.0, 20.0**2, 2 * enough_s) == "hybrid@cpu"
    assert path_beside_others(100.0, 4000.0**2, 2 * enough_s) == "table@cpu"


def checked(driver: RouterDriver, lane: LaneState) -> FreeLane:
    state, now_s = driver.router.state, driver.now_s
    busy = [o for o in reference.others(state, lane) if o.in_flight is not None and o.device == lane.device]
    free = free_lane(state, lane, state.queue.pieces, now_s)
    assert free.busy_rows == pytest.approx(reference.busy(state, lane, now_s))
    assert free.peers == reference.peers(state, lane)
    assert free.next_peer_s == min((max(0.0, o.free_s - now_s) for o in busy), default=inf)
    return free


@settings(max_examples=150, deadline=None)
@given(
    waiting=st.lists(WAITING, min_size=1, max_size=12),
    canceled=st.sets(st.integers(0, 11), max_size=2),
    server=st.sampled_from(SERVERS),
    budget_s=st.sampled_from([0.005, 0.02, 0.05]),
    rates=st.sampled_from([(0.0, 0.0), (2000.0, 2000.0), (2000.0, 1e5)]),
)
def test_every_batch_from_anywhere_in_the_queue_is_judged_as_by_the_reference(
    waiting, canceled, server, budget_s, rates
):
    driver = RouterDriver(router(*server))
    state, now_s = driver.router.state, driver.now_s
    for request in waiting:
        driver.submit(*request)
    for at in canceled:
        if at < len(driver.ends):
            driver.cancel(list(driver.ends)[at])
    state.observed.budget_s = budget_s
    state.observed.urgent_s, state.observed.rows_s = rates
    state.observed.possible_s = rates[0] / state.observed.urgent_mean
    pieces = state.queue.trim()
    for lane in state.lanes:
        free = checked(driver, lane)
        for option in lane.options:
            for start, first in enumerate(pieces):
                for count in range(1, len(pieces) + 1 - start):
                    batch = pieces[start : start + count]
                    rows = min(option.max_rows, sum(piece.rows for piece in batch))
                    if any(p.query.settled for p in batch) or (count > 1 and rows == option.max_rows):
                        continue
                    judged = leaves_rest_feasible(free, option, start, count, rows)
                    assert judged == reference.rest_is_feasible(
                        state, lane, option.path, pieces, start, count, rows, now_s
                    ), (option.path, start, count, first)


@pytest.mark.parametrize("usual", [1, 30])
@pytest.mark.parametrize("late", [0, 1, 30])
def test_queries_due_later_are_counted_from_either_end_of_the_queue(usual, late):
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    for n in range(usual):
        driver.submit(1 + n, 0.05)
        driver.submit(1000, 10.0, priority=1)
    driver.submit(7, 0.05, misses=Misses(3))
    queries = [driver.submit(20 + n, 10.0) for n in range(late)]
    for query in queries[1:3]:
        driver.cancel(query)
    state = driver.router.state
    start, rows = later_rows(state.queue, usually_due_s(state, 0.0))
    assert rows == sum(query.rows for query in queries if not query.settled)
    assert [piece.query for piece in state.queue.pieces[start:]] == queries


def test_room_in_the_queue_is_also_taken_by_arrivals_that_are_not_urgent():
    def path(rows_s: float) -> str:
        driver = RouterDriver(router(lanes=cpu_lanes(1)))
        driver.router.state.observed.rows_s = rows_s
        driver.submit(700, 10.0)
        dispatch = driver.router.next(0, 0.0)
        assert dispatch is not None
        return driver.router.state.path_specs[dispatch.path].name

    assert path(1e4) == "hybrid@cpu"
    assert path(1e6) == "table@cpu"


def leaves_the_next_in_time(budget_s: float, waited: float) -> bool:
    """Whether a batch of a query of 20 rows does, if the next one has waited for that share of its budget."""
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    state = driver.router.state
    state.observed.budget_s = 1.0
    for _ in range(2):
        driver.submit(20, budget_s)
    lane = state.lanes[0]
    free = FreeLane(state, lane, state.queue.pieces, waited * budget_s, 0.0, inf, 0, 0, 1, inf)
    return leaves_rest_feasible(free, lane.options[0], 0, 1, 20)


def test_the_best_path_leaves_the_next_query_a_share_of_its_time_and_of_its_budget():
    state = RouterDriver(router(lanes=cpu_lanes(1))).router.state
    lane = state.lanes[0]
    # the batch, then the next query, with what waits beside it
    batch_s = lane.options[0].tail[20] * lane.correction.tail[lane.options[0].path]
    needed_s = batch_s + state.service_times[40]
    for margin, fits in ((1.03, True), (0.97, False)):
        assert leaves_the_next_in_time(margin * needed_s / MAX_FILL_SHARE, 0.0) == fits
        assert leaves_the_next_in_time(margin * needed_s / (0.5 - BUDGET_KEPT), 0.5) == fits
