"""The simulator: the router of the live server on virtual lanes, in virtual time.

Arrivals, sizes and budgets go in, what became of every query comes out. The event loop works as the live one
does, iteration by iteration: it reads and parses what its sockets have, then runs what is ready (answers and
the dispatcher's turn, one or two iterations after it was asked for). An inline lane executes on it, so
that nothing is read, and no budget begins, meanwhile. Execution times are lognormal around the path's median
with its tail, drawn for every batch; what serving takes beside (costs.py) is measured live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import F64, I64
from polyrec.planner.plan import Limits, Plan, PlanError, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.latency.front_cost import LoopTime
from polyrec.planner.routing.latency.latency_table import TAIL_DEVIATIONS
from polyrec.planner.routing.query import Dispatch, Query
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.simulation.costs import READ_SHARE, BatchCost, Costs
from polyrec.planner.simulation.faults import Fault
from polyrec.planner.simulation.held import robbed, stopped
from polyrec.planner.simulation.outcomes import Outcomes, Status
from polyrec.planner.simulation.pace import EVEN, Pace

TICK_S = 0.1
PROGRESS_EVERY = 4096
INF = float("inf")
Progress = Callable[[int], None]


def specs(plan: Plan) -> tuple[tuple[PathSpec, ...], tuple[LaneSpec, ...]]:
    """Paths and lanes of a plan as the router takes them. Raises PlanError where a plan has no figures."""
    for path in plan.paths:
        if path.latency is None or path.accuracy is None:
            missing = "latency" if path.latency is None else "accuracy"
            raise PlanError(
                f"path '{path.name}' has no {missing}: simulate a plan made from a profile "
                "(polyrec profile, then polyrec plan)"
            )
    paths = tuple(
        PathSpec(p.name, p.device, p.accuracy, p.latency)
        for p in plan.paths
        if p.accuracy is not None and p.latency is not None
    )
    return paths, tuple(LaneSpec(lane.name, lane.device, lane.kind) for lane in plan.all_lanes())


class Simulator:
    """One simulation: every query to its end, by `run`. `router` may be looked at afterwards.

    arrival_s: float64 [queries], ascending; rows: int64 [queries]; budget_s: of each, or of all.
    costs: what serving takes beside the profile; None: what the routing says of the front. pace: of the core
    that all of this, and every lane, shares with whoever else is on the machine.
    """

    def __init__(
        self,
        paths: Sequence[PathSpec],
        lanes: Sequence[LaneSpec],
        routing: Routing,
        limits: Limits,
        arrival_s: F64,
        rows: I64,
        budget_s: float | F64,
        rng: np.random.Generator,
        faults: Sequence[Fault] = (),
        costs: Costs | None = None,
        pace: Pace = EVEN,
    ) -> None:
        self.router = Router(RouterState(paths, lanes, routing, limits, 0.0))
        n = arrival_s.size
        self._arrival: list[float] = arrival_s.tolist()
        self._rows: list[int] = rows.tolist()
        budgets = np.broadcast_to(np.asarray(budget_s, np.float64), arrival_s.shape)
        self._budget: list[float] = budgets.tolist()
        self._arrays = (arrival_s, rows, arrival_s + budgets)
        self._finish = [0.0] * n
        self._path = [-1] * n
        self._status = [0] * n
        self._inline = [lane.kind == "inline" for lane in lanes]
        self._running: list[Dispatch | None] = [None] * len(lanes)
        self._alive = [True] * len(lanes)
        # what the front costs is observed, as live, unless it is the plan's word
        self._observed, self._front_s = costs is not None, 0.0
        self._answering_s, self._answers = 0.0, 0
        self._costs = costs or Costs(query_s=routing.query_s, row_s=routing.row_s)
        extra = self._costs.batches
        self._extra = [(c.batch_s, c.query_s) for p in paths for c in (extra.get(p.name) or BatchCost(),)]
        refuse_s = self._costs.refuse_s
        self._refuse_s = self._costs.query_s if refuse_s is None else refuse_s
        self._now_s = self._looked_s = 0.0
        self._slept = True
        self._ready: deque[Callable[[], None]] = deque()
        self._turning = False
        self._wake_s = INF
        self._rng = rng
        rate = self._costs.held_rate
        self._held_s = float(rng.exponential(1 / rate)) if rate else INF
        self._paces: list[tuple[float, float]] = list(
            zip(pace.at_s.tolist(), pace.factor.tolist(), strict=True)
        )[::-1]
        self._pace = self._paces[-1][1]
        self._normals: list[float] = []
        self._faults = tuple(faults)
        self._firsts = [fault for fault in faults if fault.kind == "first"]
        self._core = robbed(faults, float(arrival_s[-1]) if n else 0.0)
        self._stopped = stopped(faults)
        self._changes = _changes(faults)
        self._ends: list[tuple[float, int, Dispatch]] = []
        self._number = 0

    def run(self, progress: Progress | None = None) -> Outcomes:
        """All queries to their end. progress: told now and then how many queries have arrived."""
        arrival = self._arrival
        n = len(arrival)
        at = told = 0
        tick_s = TICK_S
        ends, changes, ready = self._ends, self._changes, self._ready
        costs = self._costs
        while True:
            next_arrival = arrival[at] if at < n else INF
            if not ready:
                heard_s = min(next_arrival, ends[0][0] if ends else INF)
                due_s = min(heard_s, changes[-1][0] if changes else INF, self._wake_s)
                if due_s == INF:
                    break  # only ticks are left
                due_s = min(due_s, tick_s)
                if due_s > self._now_s:
                    self._slept = True
                    slept_s = due_s - self._now_s
                    self._held_s += slept_s  # an idle core is nobody's loss
                    self._now_s = due_s + self._cooled_s(slept_s) * self._pace
                    if due_s == heard_s:
                        self._now_s += costs.wake_s * self._pace
                    if self._core:
                        self._now_s = self._core.free_s(self._now_s)
            # Timers, then what the sockets and lanes have, then callbacks: an iteration of the live loop.
            polled_s = self._now_s
            self._keep_pace()
            if tick_s <= polled_s:
                spent = LoopTime(self._front_s, self._answering_s, self._answers)
                self.router.tick(polled_s, spent if self._observed else None)
                self._front_s, self._answering_s, self._answers = 0.0, 0.0, 0
                self._work(costs.tick_s * self._pace)
                tick_s += TICK_S
                self._wake()
            if self._wake_s <= polled_s:
                self._wake_s = INF
                self._wake()
            while changes and changes[-1][0] <= polled_s:
                _, kind, lane = changes.pop()
                self._change(kind, lane, self._now_s)
                self._wake()
            while ends and ends[0][0] <= polled_s:
                ready.append(partial(self._end, heappop(ends)[2]))
            if at < n and arrival[at] <= polled_s:
                # as live (server/http/rounds.py): the earliest moment at which what is read can have come
                since_s = polled_s if self._slept else self._looked_s
                self._looked_s, self._slept = self._now_s, False
                while at < n and arrival[at] <= polled_s:
                    self._read(at, since_s)
                    at += 1
            if progress is not None and at - told >= PROGRESS_EVERY:
                told = at
                progress(at)
            for _ in range(len(ready)):
                ready.popleft()()
            self._hold()
        if progress is not None:
            progress(n)
        arrival_s, rows, deadline_s = self._arrays
        return Outcomes(
            tuple(p.name for p in self.router.paths),
            tuple(p.accuracy for p in self.router.paths),
            arrival_s,
            rows,
            deadline_s,
            np.asarray(self._finish),
            np.asarray(self._path, np.int64),
            np.asarray(self._status, np.int64),
            float(arrival_s[-1]) if n else 0.0,
        )

    def _cooled_s(self, slept_s: float) -> float:
        """What is lost to caches and clocks that a sleep has cooled."""
        before_s = lost_s = 0.0
        for knot_s, more_s in self._costs.cooled:
            if slept_s < knot_s:
                return lost_s + (more_s - lost_s) * (slept_s - before_s) / (knot_s - before_s)
            before_s, lost_s = knot_s, more_s
        return lost_s

    def _keep_pace(self) -> None:
        """That of this moment."""
        paces = self._paces
        while paces and paces[-1][0] <= self._now_s:
            self._pace = paces.pop()[1]

    def _hold(self) -> None:
        """Others take the core from the loop where its work has come to that moment."""
        costs = self._costs
        while self._now_s >= self._held_s:
            self._now_s += float(self._rng.exponential(costs.held_s))
            self._held_s = self._now_s + float(self._rng.exponential(1 / costs.held_rate))

    def _read(self, i: int, since_s: float) -> None:
        """A request is read and offered. Its budget began at since_s, as far as the server can know."""
        costs = self._costs
        if self._now_s - since_s >= self._budget[i]:
            since_s = self._now_s  # the server does not believe that either (server/http/call.py)
        rows, deadline_s = self._rows[i], since_s + self._budget[i]
        if self.router.reject_early(since_s, deadline_s, rows, self._now_s) is not None:
            self._spend(self._refuse_s)
            self._ended(i, Status.REJECTED)
            return
        self._spend((costs.query_s + costs.row_s * rows) * READ_SHARE)
        query = Query(rows, since_s, deadline_s, payload=i)
        if self.router.offer(query, self._now_s, rows) is not None:
            self._answer(i, Status.REJECTED)
        else:
            self._wake()

    def _answer(self, i: int, status: Status) -> None:
        costs = self._costs
        if status is Status.ANSWERED:
            seconds = (costs.query_s + costs.row_s * self._rows[i]) * (1 - READ_SHARE)
            self._answering_s += self._spend(seconds)
            self._answers += 1
        else:
            self._spend(self._refuse_s * (1 - READ_SHARE))
        self._ended(i, status)

    def _ended(self, i: int, status: Status) -> None:
        self._status[i] = status
        self._finish[i] = self._now_s

    def _wake(self) -> None:
        if not self._turning:
            self._turning = True
            self._ready.append(self._gather)

    def _gather(self) -> None:
        """As the dispatcher's: another iteration of the loop, unless what waits has no time for it."""
        if self.router.is_urgent(self._now_s):
            self._turn()
        else:
            self._ready.append(self._turn)

    def _turn(self) -> None:
        """As the dispatcher's: expire, then work for every free lane, then the timer."""
        self._turning = False
        router = self.router
        expired = router.expire(self._now_s)
        running = self._running
        for lane in tuple(router.lane_order):
            if running[lane] is None and self._alive[lane]:
                dispatch = router.next(lane, self._now_s)
                if dispatch is None:
                    continue
                self._spend(self._costs.turn_s - self._costs.after_s)
                took_s = self._takes(dispatch, self._now_s)
                if self._inline[lane]:
                    began_s = self._now_s
                    self._work(took_s)
                    self._hold()
                    self._complete(dispatch, self._now_s - began_s)
                else:
                    running[lane] = dispatch
                    self._number += 1
                    end_s = self._now_s + took_s
                    if self._stopped:
                        end_s = self._stopped.done_s(self._now_s, took_s)
                    heappush(self._ends, (end_s, self._number, dispatch))
        for query in expired:
            self._answer(query.payload, Status.EXPIRED)
        # Asked again at the same moment the router would answer the same: virtual time must pass.
        wake_s = router.wake_s()
        self._wake_s = INF if wake_s is None else max(wake_s, self._now_s + 1e-6)

    def _end(self, dispatch: Dispatch) -> None:
        if self._running[dispatch.lane] is not dispatch:
            return  # its lane was killed meanwhile
        self._running[dispatch.lane] = None
        # As live: the loop learns of it when it comes to it, and so long the lane stood still.
        self._complete(dispatch, self._now_s - dispatch.started_s)

    def _complete(self, dispatch: Dispatch, took_s: float) -> None:
        self.router.done(dispatch, self._now_s, took_s)
        status = self._status
        for part in dispatch.parts:
            query = part.query
            i = query.payload
            if query.settled and not status[i] and query.done_rows >= query.rows:
                self._path[i] = query.path
                self._answer(i, Status.ANSWERED)
        self._ready.append(self._tidy)
        self._wake()

    def _tidy(self) -> None:
        self._spend(self._costs.after_s)

    def _spend(self, seconds: float) -> float:
        """The loop's own time, beside lanes: at the calibration's pace in, at that of the moment out."""
        seconds *= self._pace
        self._work(seconds)
        self._front_s += seconds
        return seconds

    def _work(self, seconds: float) -> None:
        """The loop's core is at work for so long, beside what others take of it."""
        if self._core:
            self._now_s = self._core.done_s(self._now_s, seconds)
        else:
            self._now_s += seconds

    def _takes(self, dispatch: Dispatch, now_s: float) -> float:
        latency = self.router.state.paths[dispatch.path].latency
        median_s, tail_s = latency.median[dispatch.rows], latency.tail[dispatch.rows]
        if not self._normals:
            self._normals = self._rng.standard_normal(65536).tolist()
        batch_s, query_s = self._extra[dispatch.path]
        usual_s = max(median_s + batch_s + query_s * (len(dispatch.parts) - 1), 0.0)
        took_s = usual_s * exp(log(tail_s / median_s) / TAIL_DEVIATIONS * self._normals.pop()) * self._pace
        for fault in self._faults:
            if fault.lane == dispatch.lane:
                if fault.kind == "slow" and fault.begin_s <= now_s < fault.end_s:
                    took_s *= fault.factor
                elif fault.kind == "first" and fault in self._firsts and fault.begin_s <= now_s:
                    self._firsts.remove(fault)
                    took_s *= fault.factor
                elif fault.kind == "stall" and now_s < fault.end_s and now_s + took_s > fault.begin_s:
                    took_s += fault.end_s - max(now_s, fault.begin_s)
        return took_s

    def _change(self, kind: str, lane: int, now_s: float) -> None:
        """A lane dies, or comes back."""
        if kind == "up":
            self._alive[lane] = True
            self.router.lane_up(lane, now_s)
            return
        self._alive[lane] = False
        self.router.lane_down(lane, now_s)
        dispatch = self._running[lane]
        if dispatch is not None:
            self._running[lane] = None
            for query in self.router.failed(dispatch, now_s):
                i = query.payload
                self._status[i] = Status.FAILED
                self._finish[i] = now_s


def _changes(faults: Sequence[Fault]) -> list[tuple[float, str, int]]:
    """When lanes die and come back, the last first."""
    found = []
    for fault in faults:
        if fault.kind == "kill":
            found.append((fault.begin_s, "down", fault.lane))
            if fault.end_s < INF:
                found.append((fault.end_s, "up", fault.lane))
    return sorted(found, reverse=True)


def correct(outcomes: Outcomes) -> NDArray[np.float64]:
    """Expected correct predictions of each query within its deadline: float64 [queries]."""
    good = (outcomes.status == Status.ANSWERED) & (outcomes.finish_s <= outcomes.deadline_s)
    accuracy = np.asarray(outcomes.accuracies)[outcomes.path]
    return np.where(good, outcomes.rows * accuracy, 0.0)
