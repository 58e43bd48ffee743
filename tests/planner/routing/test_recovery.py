"""What was slow for a moment is not thought slow for ever: without work, nothing would teach a router."""

from __future__ import annotations

import pytest

from planner.latency import LatencyModel
from planner.plan import LaneKind, Limits, Routing
from planner.routing.board import Board
from planner.routing.lane import LaneSpec
from planner.routing.path import PathSpec
from planner.routing.query import Query
from planner.routing.router import Router

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
        router.offer(query, now)
        for lane in router.asking:
            router.expire(now)
            if now >= free and (dispatch := router.next(lane, now)) is not None:
                free = now + takes_s
                made += sum(free <= part.query.deadline_s for part in dispatch.parts)
                router.done(dispatch, free, takes_s)
    return made


@pytest.mark.parametrize("policy", ["priced", "static:a@cpu", "mprec"])
@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize("stalls", [1, 3, 10, 200])
def test_a_moment_of_slowness_costs_a_moment_of_service(policy: str, kind: LaneKind, stalls: int) -> None:
    paths, lanes = [PathSpec("a@cpu", "cpu", 0.9, MODEL)], [LaneSpec("cpu", "cpu", kind)]
    router = Router(Board(paths, lanes, Routing(policy=policy), Limits(), 0.0))
    assert serve(router, 0.0, 300, TAKES_S) > 280
    serve(router, 1.0, stalls, 0.1)
    assert serve(router, 40.0, 300, TAKES_S) > 150
    assert serve(router, 41.0, 300, TAKES_S) > 280
