"""Simulates several models that share lanes: live routers and turns on virtual lanes, in virtual time.

The traffic of each model comes in, the outcomes of its queries go out. Service times are drawn from the
profiles; reading and answering cost nothing, so lanes alone limit what is answered in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from polyrec.planner.plan import Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.query import Dispatch, Query
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.routing.sharing.machine_time import MachineTime, ModelShare, SharingModel
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.planner.simulation.bound import Trace
from polyrec.planner.simulation.execution import ExecutionTimes
from polyrec.planner.simulation.outcomes import Outcomes, Status

TICK_S = 0.1
INF = float("inf")


@dataclass(frozen=True, slots=True)
class SharedModel:
    """One model. places: of its lanes. share: of their time."""

    trace: Trace
    lanes: tuple[LaneSpec, ...]
    places: tuple[LanePlace, ...]
    share: ModelShare
    routing: Routing


class _Tenant:
    """State of one model in a simulation. busy_s: lane time that it has used."""

    def __init__(self, model: SharedModel, machine: MachineTime, rng: np.random.Generator) -> None:
        trace = model.trace
        state = RouterState(trace.paths, model.lanes, model.routing, trace.limits, 0.0)
        self.router = Router(state)
        self.sharing: SharingModel = machine.join(self.router, model.places, model.share)
        self.sharing.scheduled = True
        self.execution = ExecutionTimes(state.paths, {}, (), rng)
        self.trace = trace
        self.budgets = trace.budgets
        n = trace.arrival_s.size
        self.finish = np.zeros(n)
        self.path = np.full(n, -1, np.int64)
        self.status = np.zeros(n, np.int64)
        self.wake_s = INF
        self.busy_s = 0.0

    def offer(self, i: int, now_s: float) -> None:
        query = Query(int(self.trace.rows[i]), now_s, now_s + float(self.budgets[i]), payload=i)
        if self.router.offer(query, now_s) is not None:
            self.end(i, Status.REJECTED, now_s)

    def end(self, i: int, status: Status, now_s: float) -> None:
        self.status[i], self.finish[i] = status, now_s

    def complete(self, dispatch: Dispatch, now_s: float) -> None:
        took_s = now_s - dispatch.started_s
        self.busy_s += took_s
        self.router.done(dispatch, now_s, took_s)
        for part in dispatch.parts:
            query, i = part.query, part.query.payload
            if query.settled and not self.status[i] and query.done_rows >= query.rows:
                self.path[i] = query.path
                self.end(i, Status.ANSWERED, now_s)

    def outcomes(self) -> Outcomes:
        arrival_s, paths = self.trace.arrival_s, self.router.paths
        return Outcomes(
            tuple(p.name for p in paths),
            tuple(p.quality for p in paths),
            tuple(p.accuracy for p in paths),
            arrival_s,
            self.trace.rows,
            arrival_s + self.budgets,
            self.finish,
            self.path,
            self.status,
            float(arrival_s[-1]) if arrival_s.size else 0.0,
        )


@dataclass(frozen=True, slots=True)
class SharedOutcomes:
    """Results by model. busy_s: lane time used, seconds."""

    outcomes: tuple[Outcomes, ...]
    busy_s: tuple[float, ...]


def simulate_shared(
    models: Sequence[SharedModel], cores: frozenset[int], rng: np.random.Generator
) -> SharedOutcomes:
    """Simulates all queries to their end. cores: those that lanes may use."""
    machine = MachineTime(cores)
    tenants = [_Tenant(model, machine, rng) for model in models]
    arrivals = sorted(
        (float(at), m, i) for m, t in enumerate(tenants) for i, at in enumerate(t.trace.arrival_s)
    )
    arrivals.reverse()
    ends: list[tuple[float, int, int, Dispatch]] = []
    number = 0
    tick_s = TICK_S
    while True:
        event_s = min(
            arrivals[-1][0] if arrivals else INF,
            ends[0][0] if ends else INF,
            *(tenant.wake_s for tenant in tenants),
        )
        if event_s == INF:
            break
        now_s = min(event_s, tick_s)
        if now_s == tick_s:
            tick_s += TICK_S
            for tenant in tenants:
                tenant.router.tick(now_s)
            machine.tick(now_s)
        while ends and ends[0][0] <= now_s:
            _, _, m, dispatch = heappop(ends)
            tenants[m].complete(dispatch, now_s)
            machine.ended(tenants[m].sharing, dispatch, now_s - dispatch.started_s)
        while arrivals and arrivals[-1][0] <= now_s:
            _, m, i = arrivals.pop()
            tenants[m].offer(i, now_s)
        for m, dispatch in _turns(tenants, machine, now_s):
            number += 1
            service_s = tenants[m].execution.draw_s(dispatch, now_s, 1.0)
            heappush(ends, (now_s + service_s, number, m, dispatch))
        for tenant in tenants:
            wake_s = tenant.router.wake_s()
            # at the same moment the router would decide the same, so virtual time must advance
            tenant.wake_s = INF if wake_s is None else max(wake_s, now_s + 1e-6)
    return SharedOutcomes(tuple(t.outcomes() for t in tenants), tuple(t.busy_s for t in tenants))


def _turns(tenants: Sequence[_Tenant], machine: MachineTime, now_s: float) -> list[tuple[int, Dispatch]]:
    """Expires queries, then lets models ask in turn until none of them can start a batch."""
    for tenant in tenants:
        for query in tenant.router.expire(now_s):
            tenant.end(query.payload, Status.EXPIRED, now_s)
    begun: list[tuple[int, Dispatch]] = []
    again = True
    while again:
        again = False
        for m, tenant in enumerate(tenants):
            router, sharing = tenant.router, tenant.sharing
            for lane in tuple(router.lane_order):
                state = router.state.lanes[lane]
                if state.in_flight is not None:
                    continue
                if not machine.may_start(sharing, lane, now_s):
                    continue
                dispatch = router.next(lane, now_s)
                if dispatch is not None:
                    machine.started(sharing, dispatch)
                    begun.append((m, dispatch))
            again |= sharing.yielded
            sharing.passed(scheduled=True)
    return begun
