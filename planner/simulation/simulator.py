"""The simulator: the router of the live server on virtual lanes, in virtual time.

Arrivals, sizes and budgets go in, what became of every query comes out. An event loop is modelled as the
live one works: it takes what is ready, then turns: expires, and gives every free lane its work. Parsing
and writing take the front's time on that loop; an inline lane executes on it, so both wait for each
other. Execution times are lognormal around the path's median with its tail, drawn for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from planner.plan import Limits, Plan, PlanError, Routing
from planner.routing.curve import TAIL_DEVIATIONS
from planner.routing.query import Dispatch, Query
from planner.routing.router import LaneSpec, PathSpec, Router
from planner.simulation.faults import Fault
from planner.simulation.outcomes import F64, I64, Outcomes, Status

TICK_S = 0.1
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


def simulate(
    paths: Sequence[PathSpec],
    lanes: Sequence[LaneSpec],
    routing: Routing,
    limits: Limits,
    arrival_s: F64,
    rows: I64,
    budget_s: float | F64,
    rng: np.random.Generator,
    faults: Sequence[Fault] = (),
    progress: Progress | None = None,
) -> Outcomes:
    """Runs every query to its end. progress: told now and then how many queries have arrived."""
    return Simulator(paths, lanes, routing, limits, arrival_s, rows, budget_s, rng, faults).run(progress)


class Simulator:
    """One simulation. `router` may be looked at afterwards."""

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
    ) -> None:
        self.router = Router(paths, lanes, routing, limits, 0.0)
        n = arrival_s.size
        self._arrival: list[float] = arrival_s.tolist()
        self._rows: list[int] = rows.tolist()
        deadline = arrival_s + budget_s
        self._deadline: list[float] = deadline.tolist()
        self._arrays = (arrival_s, rows, deadline)
        self._finish = [0.0] * n
        self._path = [-1] * n
        self._status = [0] * n
        self._inline = [lane.kind == "inline" for lane in lanes]
        self._running: list[Dispatch | None] = [None] * len(lanes)
        self._alive = [True] * len(lanes)
        self._front = (routing.query_s / 2, routing.row_s / 2)
        self._loop_free_s = 0.0
        self._rng = rng
        self._normals: list[float] = []
        self._faults = tuple(faults)
        self._changes = _changes(faults)
        self._ends: list[tuple[float, int, Dispatch]] = []
        self._number = 0

    def run(self, progress: Progress | None = None) -> Outcomes:
        """All queries to their end."""
        arrival = self._arrival
        n = len(arrival)
        at = 0
        tick_s, wake_s = TICK_S, INF
        ends, changes = self._ends, self._changes
        router = self.router
        horizon_s = -1.0
        now_s = 0.0
        while True:
            next_arrival = arrival[at] if at < n else INF
            next_end = ends[0][0] if ends else INF
            next_change = changes[-1][0] if changes else INF
            due_s = min(next_arrival, next_end, next_change)
            other_s = min(tick_s, wake_s)
            if min(due_s, other_s) > horizon_s >= 0:
                wake_s = self._turn(max(now_s, self._loop_free_s))
                horizon_s = -1.0
                continue
            if due_s == INF and wake_s == INF:
                break  # only ticks are left
            if due_s <= other_s:
                now_s = max(due_s, self._loop_free_s)
                if horizon_s < 0:
                    horizon_s = now_s
                if due_s == next_end:
                    self._end(heappop(ends), now_s)
                elif due_s == next_arrival:
                    self._arrive(at, now_s)
                    at += 1
                    if progress is not None and not at % 4096:
                        progress(at)
                else:
                    _, kind, lane = changes.pop()
                    self._change(kind, lane, now_s)
            elif tick_s <= wake_s:
                now_s = max(tick_s, self._loop_free_s)
                if horizon_s < 0:
                    horizon_s = now_s
                router.tick(now_s)
                tick_s += TICK_S
            else:
                now_s = max(wake_s, self._loop_free_s)
                if horizon_s < 0:
                    horizon_s = now_s
                wake_s = INF
        if progress is not None:
            progress(n)
        arrival_s, rows, deadline_s = self._arrays
        return Outcomes(
            tuple(p.name for p in router.paths),
            tuple(p.accuracy for p in router.paths),
            arrival_s,
            rows,
            deadline_s,
            np.asarray(self._finish),
            np.asarray(self._path, np.int64),
            np.asarray(self._status, np.int64),
            float(arrival_s[-1]) if n else 0.0,
        )

    def _arrive(self, i: int, now_s: float) -> None:
        rows = self._rows[i]
        query_s, row_s = self._front
        now_s += query_s + row_s * rows
        self._loop_free_s = now_s
        query = Query(rows, self._arrival[i], self._deadline[i], payload=i)
        if self.router.offer(query, now_s) is not None:
            self._status[i] = Status.REFUSED
            self._finish[i] = now_s

    def _turn(self, now_s: float) -> float:
        """As the dispatcher's: expire, then work for every free lane. Returns when to wake."""
        router = self.router
        for query in router.expire(now_s):
            i = query.payload
            self._status[i] = Status.EXPIRED
            self._finish[i] = now_s
        running = self._running
        again = False
        for lane in tuple(router.asking):
            if running[lane] is None and self._alive[lane]:
                dispatch = router.next(lane, now_s)
                if dispatch is None:
                    continue
                took_s = self._takes(dispatch, now_s)
                if self._inline[lane]:
                    now_s += took_s
                    self._loop_free_s = now_s
                    self._complete(dispatch, now_s, took_s)
                    now_s = self._loop_free_s
                    again = True
                else:
                    running[lane] = dispatch
                    self._number += 1
                    heappush(self._ends, (now_s + took_s, self._number, dispatch))
        if again:
            return now_s
        # Asked again at the same moment the router would answer the same: virtual time must pass.
        wake_s = router.wake_s()
        return INF if wake_s is None else max(wake_s, now_s + 1e-6)

    def _end(self, end: tuple[float, int, Dispatch], now_s: float) -> None:
        dispatch = end[2]
        if self._running[dispatch.lane] is not dispatch:
            return  # its lane was killed meanwhile
        self._running[dispatch.lane] = None
        # As live: the loop learns of it when it comes to it, and so long the lane stood still.
        self._complete(dispatch, now_s, now_s - dispatch.started_s)

    def _complete(self, dispatch: Dispatch, now_s: float, took_s: float) -> None:
        self.router.done(dispatch, now_s, took_s)
        query_s, row_s = self._front
        status = self._status
        for part in dispatch.parts:
            query = part.query
            i = query.payload
            if query.settled and not status[i] and query.done_rows >= query.rows:
                now_s += query_s + row_s * query.rows
                status[i] = Status.ANSWERED
                self._finish[i] = now_s
                self._path[i] = query.path
        self._loop_free_s = max(self._loop_free_s, now_s)

    def _takes(self, dispatch: Dispatch, now_s: float) -> float:
        curve = self.router.board.paths[dispatch.path].curve
        median_s, tail_s = curve.median[dispatch.rows], curve.tail[dispatch.rows]
        if not self._normals:
            self._normals = self._rng.standard_normal(65536).tolist()
        took_s = median_s * exp(log(tail_s / median_s) / TAIL_DEVIATIONS * self._normals.pop())
        for fault in self._faults:
            if fault.lane == dispatch.lane:
                if fault.kind == "slow" and fault.begin_s <= now_s < fault.end_s:
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
