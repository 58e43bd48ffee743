"""Simulates several models of one server: live routers and turns on virtual lanes, in virtual time.

The input is each model's traffic, the output its queries' outcomes. Service times are drawn from the
profiles. As in the simulation of a single model (simulator.py), one event loop reads, rejects and answers the
requests of all models and executes the batches of inline lanes, so that time spent on one model is not
available to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

import numpy as np

from polyrec.planner.plan import Routing
from polyrec.planner.routing.admission.arrival import ArrivalTimes
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.latency.front_cost import LoopTime
from polyrec.planner.routing.query import Dispatch, Query
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.routing.sharing.machine_time import MachineTime, ModelShare, SharingModel
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.planner.simulation.costs import READ_SHARE, Costs
from polyrec.planner.simulation.execution import ExecutionTimes
from polyrec.planner.simulation.outcomes import Outcomes, Status
from polyrec.planner.simulation.trace import Trace

TICK_S = 0.1
INF = float("inf")
NO_COSTS = Costs()


@dataclass(frozen=True, slots=True)
class SharedModel:
    """One model. places: of its lanes. share: of their time.

    costs: of reading, rejecting and answering, per batch, and beyond the profile; none without them.
    """

    trace: Trace
    lanes: tuple[LaneSpec, ...]
    places: tuple[LanePlace, ...]
    share: ModelShare
    routing: Routing
    costs: Costs = NO_COSTS


@dataclass(frozen=True, slots=True)
class SharedOutcomes:
    """Results by model. busy_s: used lane time in seconds. batches: number executed. front_s: loop time."""

    outcomes: tuple[Outcomes, ...]
    busy_s: tuple[float, ...]
    batches: tuple[int, ...]
    front_s: float


class _Tenant:
    """State of one model in a simulation. scheduled: whether its next pass over free lanes is scheduled."""

    def __init__(self, model: SharedModel, machine: MachineTime, rng: np.random.Generator) -> None:
        trace, costs = model.trace, model.costs
        state = RouterState(trace.paths, model.lanes, model.routing, trace.limits, 0.0)
        self.router = Router(state)
        self.sharing: SharingModel = machine.join(self.router, model.places, model.share)
        self.execution = ExecutionTimes(state.paths, costs.batches, (), rng)
        self.trace = trace
        self.rows: list[int] = trace.rows.tolist()
        self.budgets: list[float] = trace.budgets.tolist()
        self.costs = costs
        self.reject_s = costs.query_s if costs.refuse_s is None else costs.refuse_s
        n = trace.arrival_s.size
        self.finish = np.zeros(n)
        self.path = np.full(n, -1, np.int64)
        self.status = np.zeros(n, np.int64)
        self.scheduled = False
        self.wake_s = INF
        self.answering_s, self.answers = 0.0, 0
        self.busy_s, self.batches = 0.0, 0

    def query_s(self, i: int) -> float:
        """Seconds of reading and answering a query."""
        return self.costs.query_s + self.costs.row_s * self.rows[i]

    def end(self, i: int, status: Status, now_s: float) -> None:
        self.status[i], self.finish[i] = status, now_s

    def outcomes(self) -> Outcomes:
        return Outcomes.of(self.trace, self.finish, self.path, self.status)


class _Loop:
    """The event loop of a simulation. front_s: spent on all but batches; read_s: on reading since a tick."""

    def __init__(
        self, models: Sequence[SharedModel], cores: frozenset[int], rng: np.random.Generator
    ) -> None:
        self.machine = MachineTime(cores)
        self.tenants = [_Tenant(model, self.machine, rng) for model in models]
        for tenant in self.tenants:
            tenant.sharing.wake = partial(self._schedule, tenant)
        self._is_observed = any(model.costs != NO_COSTS for model in models)
        self._now_s = 0.0
        self._ready: deque[Callable[[], None]] = deque()
        self._ends: list[tuple[float, int, _Tenant, Dispatch]] = []
        self._number = 0
        self._arrivals = ArrivalTimes()
        self.front_s = self._read_s = 0.0

    def run(self) -> None:
        """Simulates all queries to their end."""
        arriving = sorted(
            (float(at), m, i) for m, t in enumerate(self.tenants) for i, at in enumerate(t.trace.arrival_s)
        )
        arriving.reverse()
        ends, ready = self._ends, self._ready
        slept = True
        tick_s = TICK_S
        while True:
            if not ready:
                due_s = min(
                    arriving[-1][0] if arriving else INF,
                    ends[0][0] if ends else INF,
                    *(tenant.wake_s for tenant in self.tenants),
                )
                if due_s == INF:
                    break  # only ticks are left
                due_s = min(due_s, tick_s)
                if due_s > self._now_s:
                    slept = True
                    self._now_s = due_s
            polled_s = self._now_s
            if tick_s <= polled_s:
                self._tick()
                tick_s += TICK_S
            for tenant in self.tenants:
                if tenant.wake_s <= polled_s:
                    tenant.wake_s = INF
                    self._schedule(tenant)
            while ends and ends[0][0] <= polled_s:
                _, _, tenant, dispatch = heappop(ends)
                ready.append(partial(self._complete, tenant, dispatch))
            if arriving and arriving[-1][0] <= polled_s:
                self._arrivals.begin_reading(self._now_s, slept)
                slept = False
                while arriving and arriving[-1][0] <= polled_s:
                    _, m, i = arriving.pop()
                    self._read(self.tenants[m], i)
            for _ in range(len(ready)):
                ready.popleft()()

    def _tick(self) -> None:
        queries = [tenant.router.state.observed.new_queries for tenant in self.tenants]
        for tenant, own in zip(self.tenants, queries, strict=True):
            # as live: the loop's reading is divided by arrivals
            reading_s = self._read_s * own / max(1, sum(queries))
            spent = LoopTime(reading_s + tenant.answering_s, tenant.answering_s, tenant.answers)
            tenant.router.tick(self._now_s, spent if self._is_observed else None)
            tenant.answering_s, tenant.answers = 0.0, 0
            self._schedule(tenant)
        self._read_s = 0.0
        self.machine.tick()

    def _read(self, tenant: _Tenant, i: int) -> None:
        """Reads and submits a request, whose budget begins at its arrival as estimated by the server."""
        self._arrivals.count_request()
        rows, budget_s = tenant.rows[i], tenant.budgets[i]
        router = tenant.router
        since_s = self._arrivals.arrival().budget_start_s(budget_s, self._now_s, router.state.disturbed)
        if router.reject_early(since_s, since_s + budget_s, rows, self._now_s) is not None:
            self._spend(tenant.reject_s)
            tenant.end(i, Status.REJECTED, self._now_s)
            return
        self._spend(tenant.query_s(i) * READ_SHARE)
        query = Query(rows, since_s, since_s + budget_s, payload=i)
        if router.submit(query, self._now_s) is not None:
            self._spend(tenant.reject_s * (1 - READ_SHARE))
            tenant.end(i, Status.REJECTED, self._now_s)
            return
        self._schedule(tenant)

    def _spend(self, seconds: float) -> None:
        """Spends loop time outside lanes and answers."""
        self._now_s += seconds
        self.front_s += seconds
        self._read_s += seconds

    def _schedule(self, tenant: _Tenant) -> None:
        if not tenant.scheduled:
            tenant.scheduled = tenant.sharing.scheduled = True
            self._ready.append(partial(self._gather, tenant))

    def _gather(self, tenant: _Tenant) -> None:
        """Schedules the pass for the next iteration, or begins it at once if the queue's head is urgent."""
        if tenant.router.is_urgent(self._now_s):
            self._pass(tenant)
        else:
            self._ready.append(partial(self._pass, tenant))

    def _pass(self, tenant: _Tenant) -> None:
        """Expires queries, gives free lanes their batches if it is the model's turn, and sets the timer."""
        tenant.scheduled = False
        router, sharing = tenant.router, tenant.sharing
        expired = router.expire(self._now_s)
        for lane in tuple(router.lane_order):
            state = router.state.lanes[lane]
            if state.in_flight is not None or not sharing.may_start(lane):
                continue
            dispatch = router.next(lane, self._now_s)
            if dispatch is None:
                continue
            sharing.started(dispatch)
            self._spend(tenant.costs.turn_s)
            service_s = tenant.execution.draw_s(dispatch, self._now_s, 1.0)
            if state.inline:
                self._now_s += service_s
                self._complete(tenant, dispatch, service_s)
            else:
                self._number += 1
                heappush(self._ends, (self._now_s + service_s, self._number, tenant, dispatch))
        for query in expired:
            self._spend(tenant.reject_s * (1 - READ_SHARE))
            tenant.end(query.payload, Status.EXPIRED, self._now_s)
        if sharing.yielded and not tenant.scheduled:
            tenant.scheduled = True
            self._ready.append(partial(self._pass, tenant))
        sharing.passed(tenant.scheduled)
        # at the same moment the router would decide the same, so virtual time must advance
        wake_s = router.wake_s()
        tenant.wake_s = INF if wake_s is None else max(wake_s, self._now_s + 1e-6)

    def _complete(self, tenant: _Tenant, dispatch: Dispatch, took_s: float | None = None) -> None:
        """Ends a batch, answers its queries, and lets all models that may start another one pass."""
        if took_s is None:
            took_s = self._now_s - dispatch.started_s
        tenant.busy_s += took_s
        tenant.batches += 1
        tenant.router.done(dispatch, self._now_s, took_s)
        for part in dispatch.parts:
            query, i = part.query, part.query.payload
            if query.settled and not tenant.status[i] and query.done_rows >= query.rows:
                seconds = tenant.query_s(i) * (1 - READ_SHARE)
                self._now_s += seconds
                self.front_s += seconds
                tenant.answering_s += seconds
                tenant.answers += 1
                tenant.path[i] = query.path
                tenant.end(i, Status.ANSWERED, self._now_s)
        tenant.sharing.ended(dispatch, took_s)
        self._schedule(tenant)


def simulate_shared(
    models: Sequence[SharedModel], cores: frozenset[int], rng: np.random.Generator
) -> SharedOutcomes:
    """Simulates all queries to their end. cores: those that lanes may use."""
    loop = _Loop(models, cores, rng)
    loop.run()
    tenants = loop.tenants
    return SharedOutcomes(
        tuple(t.outcomes() for t in tenants),
        tuple(t.busy_s for t in tenants),
        tuple(t.batches for t in tenants),
        loop.front_s,
    )
