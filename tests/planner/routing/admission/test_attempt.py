"""Attempts: a lane that was slow for a moment gets work again, which corrects its predictions."""

from __future__ import annotations

import pytest

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState

TAKES_S, BUDGET_S, GAP_S = 0.0014, 0.0095, 0.003
MODEL = LatencyModel(rows=(1, 1024), median_s=(TAKES_S, 0.01), tail_s=(1.5 * TAKES_S, 0.015))


def serve(router: Router, start_s: float, queries: int, takes_s: float) -> int:
    """One query every GAP_S, each batch taking `takes_s`. How many were executed within their budget."""
    made = 0
    ticked = free = start_s
    for i in range(queries):
        now = start_s + i * GAP_S
        if now - ticked > 0.1:
            router.tick(now)
            ticked = now
        query = Query(20, now, now + BUDGET_S)
        router.submit(query, now)
        for lane in router.lane_order:
            router.expire(now)
            if now >= free and (dispatch := router.next(lane, now)) is not None:
                free = now + takes_s
                made += sum(free <= part.query.deadline_s for part in dispatch.parts)
                router.done(dispatch, free, takes_s)
    return made


@pytest.mark.parametrize("policy", ["priced", "static:a@cpu", "mprec"])
@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize("stalls", [1, 3, 10, 200])
def test_service_recovers_from_a_slow_moment(policy: str, kind: LaneKind, stalls: int) -> None:
    paths, lanes = [PathSpec("a@cpu", "cpu", 0.9, MODEL)], [LaneSpec("cpu", "cpu", kind)]
    router = Router(RouterState(paths, lanes, Routing(policy=policy), Limits(), 0.0))
    assert serve(router, 0.0, 300, TAKES_S) > 280
    serve(router, 1.0, stalls, 0.1)
    assert serve(router, 40.0, 300, TAKES_S) > 150
    assert serve(router, 41.0, 300, TAKES_S) > 280


def stalled(router: Router, start_s: float, stalls: int) -> float:
    """Batches that take 50 ms although they should take 1.4, one after another; gives the time afterwards."""
    now_s = start_s
    for _ in range(stalls):
        router.submit(Query(20, now_s, now_s + BUDGET_S), now_s)
        dispatch = router.next(0, now_s)
        now_s += 0.05
        if dispatch is not None:
            router.done(dispatch, now_s, 0.05)
        router.expire(now_s)
    return now_s


@pytest.mark.parametrize("policy", ["priced", "static:a@cpu"])
@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize("stalls", [1, 3, 10, 40])
def test_an_idle_lane_attempts_at_once_what_it_once_executed_in_time(
    policy: str, kind: LaneKind, stalls: int
) -> None:
    """However slow it is believed to be: a rejection that no execution refutes would go on for ever."""
    paths, lanes = [PathSpec("a@cpu", "cpu", 0.9, MODEL)], [LaneSpec("cpu", "cpu", kind)]
    router = Router(RouterState(paths, lanes, Routing(policy=policy), Limits(), 0.0))
    serve(router, 0.0, 50, TAKES_S)
    now_s = stalled(router, 1.0, stalls) + 1e-4
    query = Query(20, now_s, now_s + BUDGET_S)
    assert router.submit(query, now_s) is None
    assert router.expire(now_s) == []
    dispatch = router.next(0, now_s)
    assert dispatch is not None
    assert dispatch.parts[0].query is query


def test_a_budget_that_no_path_ever_met_is_rejected_but_for_one_attempt_a_second() -> None:
    paths, lanes = [PathSpec("a@cpu", "cpu", 0.9, MODEL)], [LaneSpec("cpu", "cpu", "inline")]
    router = Router(RouterState(paths, lanes, Routing(), Limits(), 0.0))
    serve(router, 0.0, 50, TAKES_S)
    hopeless_s = TAKES_S / 3
    assert router.submit(Query(20, 0.2, 0.2 + hopeless_s), 0.2) is not None
    now_s = 2.0
    assert router.submit(Query(20, now_s, now_s + hopeless_s), now_s) is None
    dispatch = router.next(0, now_s)
    assert dispatch is not None
    router.done(dispatch, now_s + hopeless_s / 2, hopeless_s / 2)
    assert router.submit(Query(20, 2.1, 2.1 + hopeless_s), 2.1) is None  # it was made: the profile was wrong


def test_queries_expire_early_only_by_observed_times() -> None:
    """The profile says 1.4 ms, but batches were seen to take a tenth of it."""
    paths, lanes = [PathSpec("a@cpu", "cpu", 0.9, MODEL)], [LaneSpec("cpu", "cpu", "process")]
    router = Router(RouterState(paths, lanes, Routing(), Limits(), 0.0))
    serve(router, 0.0, 300, TAKES_S)
    assert 0.85 * TAKES_S < router.state.min_latency_s <= TAKES_S
    router.submit(Query(1, 2.0, 2.1), 2.0)
    dispatch = router.next(0, 2.0)
    assert dispatch is not None
    router.done(dispatch, 2.0 + TAKES_S / 10, TAKES_S / 10)
    router.tick(2.1)
    assert router.state.min_latency_s == pytest.approx(TAKES_S / 10)
