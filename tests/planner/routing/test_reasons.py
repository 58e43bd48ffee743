"""Reasons: a failure only where a lane died or lost work, else what bound the choice; a probe says so."""

from __future__ import annotations

from polyrec.planner.routing.query import Reason
from tests.planner.routing.worlds import GPU_HYBRID, GPU_LANE, TABLE, Owner, cpu_lanes, router


def two_devices() -> Owner:
    """The best path is on the GPU only."""
    return Owner(router((GPU_HYBRID, TABLE), (GPU_LANE, *cpu_lanes(1))))


def test_a_dead_lane_is_said_to_be_a_failure():
    owner = two_devices()
    owner.router.lane_down(0, 0.0)
    query = owner.offer(23, 0.1)
    owner.run(0.05)
    assert owner.router.paths[query.path].name == "table@cpu"
    assert query.reason is Reason.FAILURE


def test_a_query_whose_batch_was_lost_says_failure_if_a_cheaper_path_answers_it():
    owner = two_devices()
    query = owner.offer(23, 0.1)
    owner.turn()
    assert list(owner.running) == [0]
    owner.router.lane_down(0, owner.now_s)
    owner.failed(0)
    owner.run(0.05)
    assert (owner.ends[query], query.reason) == (["answered"], Reason.FAILURE)


def test_a_lane_that_only_stalls_is_no_failure():
    owner = two_devices()
    query = owner.offer(23, 0.1)
    owner.turn()
    owner.now_s = 0.05  # far beyond its tail: given up, and queued again for the other lane
    owner.turn()
    assert 1 in owner.running
    owner.now_s += owner.running[1].median_s
    owner.done(1)
    assert owner.ends[query] == ["answered"]
    assert owner.router.paths[query.path].name == "table@cpu"
    assert query.reason is Reason.DEADLINE


def test_a_best_path_that_is_believed_slow_is_left_for_what_bound_it_and_not_for_a_failure():
    """Three batches of the only lane took fifty times their time; nothing failed."""
    owner = Owner(router(lanes=cpu_lanes(1, "inline")))
    for slow in (1, 1, 1, 50, 50, 50, 50):
        owner.offer(23, 0.5)
        owner.turn()
        dispatch = owner.running[0]
        took_s = slow * owner.router.board.paths[dispatch.path].curve.median[23]
        owner.now_s += took_s
        owner.done(0, took_s)
    query = owner.offer(23, 0.01)
    owner.turn()
    assert owner.router.paths[query.path].name == "table@cpu"
    assert query.reason is Reason.DEADLINE


def test_a_probe_says_so_where_it_answers_on_a_path_that_is_not_the_best():
    owner = Owner(router(lanes=cpu_lanes(2)))
    owner.router.lane_down(0, 0.0)
    owner.router.lane_up(0, 0.0)
    query = owner.offer(23, 0.0007)  # too little time for the best path
    owner.turn()
    copy = owner.running[0]
    assert (copy.probe, copy.reason, owner.router.paths[copy.path].name) == (True, Reason.PROBE, "table@cpu")
    owner.now_s += copy.median_s
    owner.done(0)
    assert (owner.ends[query], query.reason) == (["answered"], Reason.PROBE)


def test_a_probe_with_time_for_it_is_on_the_best_path():
    owner = Owner(router(lanes=cpu_lanes(2)))
    owner.router.lane_down(0, 0.0)
    owner.router.lane_up(0, 0.0)
    owner.offer(23, 0.1)
    owner.turn()
    assert owner.running[0].probe
    assert [(d.reason, owner.router.paths[d.path].name) for d in owner.running.values()] == [
        (Reason.BEST, "hybrid@cpu"),
        (Reason.BEST, "hybrid@cpu"),
    ]
