"""Simulates a server, by running the live router on virtual lanes in virtual time.

`Simulator.run` returns the outcome of each query of a trace. The event loop is modeled iteration by
iteration: it reads and parses the requests in its sockets, then runs callbacks (answers, and the
dispatcher's pass one or two iterations after it was scheduled). An inline lane executes on the loop;
meanwhile nothing is read and no budget begins. Service times (execution.py) are drawn from the profile,
other costs (costs.py) were measured on a live server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush

import numpy as np

from polyrec.planner.plan import Plan, PlanError, Routing
from polyrec.planner.quality import routing_values
from polyrec.planner.routing.admission.arrival import ArrivalTimes
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.latency.front_cost import LoopTime
from polyrec.planner.routing.latency.read_times import ReadSeconds
from polyrec.planner.routing.query import Dispatch, Query
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.simulation.costs import READ_SHARE, Costs
from polyrec.planner.simulation.execution import ExecutionTimes
from polyrec.planner.simulation.faults import Fault, lane_changes
from polyrec.planner.simulation.outcomes import Outcomes, Status
from polyrec.planner.simulation.preemption import loop_preemptions, process_stops
from polyrec.planner.simulation.row_reads import DrawnReads
from polyrec.planner.simulation.trace import Trace

TICK_S = 0.1
PROGRESS_EVERY = 4096
INF = float("inf")
Progress = Callable[[int], object]
Slowdown = Callable[[float], float]
"""Factor on all CPU time as a function of time in seconds; 1 is the speed of the calibration."""


def no_slowdown(now_s: float) -> float:
    """Returns 1, the speed of the calibration, at any time."""
    return 1.0


def specs(plan: Plan) -> tuple[tuple[PathSpec, ...], tuple[LaneSpec, ...]]:
    """Returns a plan's paths and lanes for the router. Raises PlanError if latency or quality is missing."""
    for path in plan.paths:
        if path.latency is None or path.quality is None:
            missing = "latency" if path.latency is None else "quality"
            raise PlanError(
                f"path '{path.name}' has no {missing}: simulate a plan made from a profile "
                "(polyrec profile, then polyrec plan)"
            )
    values = routing_values({p.name: p.quality for p in plan.paths}, plan.differences)
    paths = tuple(
        PathSpec(p.name, p.device, p.quality, p.latency, values[p.name], p.accuracy)
        for p in plan.paths
        if p.quality is not None and p.latency is not None
    )
    return paths, tuple(LaneSpec(lane.name, lane.device, lane.kind) for lane in plan.all_lanes())


class Simulator:
    """One simulation, started by `run`. `router` may be inspected afterwards.

    costs: costs beyond the profile; None for only the front's cost in `routing`.
    slowdown: of the core that the loop and all lanes share.
    """

    def __init__(
        self,
        trace: Trace,
        lanes: Sequence[LaneSpec],
        routing: Routing,
        rng: np.random.Generator,
        faults: Sequence[Fault] = (),
        costs: Costs | None = None,
        slowdown: Slowdown = no_slowdown,
    ) -> None:
        self.router = Router(RouterState(trace.paths, lanes, routing, trace.limits, 0.0))
        self._trace = trace
        n = trace.arrival_s.size
        self._arrival: list[float] = trace.arrival_s.tolist()
        self._rows: list[int] = trace.rows.tolist()
        self._budget: list[float] = trace.budgets.tolist()
        self._finish = [0.0] * n
        self._path = [-1] * n
        self._status = [0] * n
        self._inline = [lane.kind == "inline" for lane in lanes]
        self._running: list[Dispatch | None] = [None] * len(lanes)
        self._alive = [True] * len(lanes)
        # with measured costs, the router observes the front's cost as in the live server
        self._observed, self._front_s = costs is not None, 0.0
        self._answering_s, self._answers = 0.0, 0
        self._costs = costs or Costs(query_s=routing.query_s, row_s=routing.row_s)
        reject_s = self._costs.refuse_s
        self._reject_s = self._costs.query_s if reject_s is None else reject_s
        self._now_s = 0.0
        self._at = 0
        """Index of the next query to arrive."""
        self._tick_s = TICK_S
        self._slept = True
        self._arrivals = ArrivalTimes()
        self._ready: deque[Callable[[], None]] = deque()
        self._turn_scheduled = False
        self._wake_s = INF
        self._rng = rng
        rate = self._costs.held_rate
        self._next_preemption_s = float(rng.exponential(1 / rate)) if rate else INF
        self._slowdown = slowdown
        self._factor = slowdown(0.0)
        self._execution = ExecutionTimes(self.router.state.paths, self._costs.batches, faults, rng)
        self._reads = DrawnReads(self._costs.reads, n, rng)
        self._ready_s: dict[Query, float] = {}
        self._core = loop_preemptions(faults, self._arrival[-1] if n else 0.0)
        self._stops = process_stops(faults)
        self._changes = lane_changes(faults)
        self._ends: list[tuple[float, int, Dispatch | Query]] = []
        self._number = 0

    @property
    def queries(self) -> int:
        """Number of queries in the trace."""
        return len(self._arrival)

    def run(self, progress: Progress | None = None) -> Outcomes:
        """Simulates all queries. progress: called occasionally with the number of arrived queries."""
        reported = 0
        while self._ready or self._sleep_until_event():
            # the same order as in the live loop: timers, then sockets and lanes, then callbacks
            polled_s = self._now_s
            self._factor = self._slowdown(polled_s)
            self._run_timers(polled_s)
            self._poll(polled_s)
            if progress is not None and self._at - reported >= PROGRESS_EVERY:
                reported = self._at
                progress(reported)
            for _ in range(len(self._ready)):
                self._ready.popleft()()
            self._preempt()
        if progress is not None:
            progress(self.queries)
        finish_s, path, status = self._finish, self._path, self._status
        return Outcomes.of(
            self._trace, np.asarray(finish_s), np.asarray(path, np.int64), np.asarray(status, np.int64)
        )

    def _sleep_until_event(self) -> bool:
        """Advances time to the next event if it is in the future; returns False if only ticks are left."""
        next_arrival = self._arrival[self._at] if self._at < len(self._arrival) else INF
        event_s = min(next_arrival, self._ends[0][0] if self._ends else INF)
        due_s = min(event_s, self._changes[-1][0] if self._changes else INF, self._wake_s)
        if due_s == INF:
            return False
        due_s = min(due_s, self._tick_s)
        if due_s > self._now_s:
            self._sleep(due_s, due_s == event_s)
        return True

    def _run_timers(self, polled_s: float) -> None:
        """Runs the router's tick, the dispatcher's timer, and due lane changes."""
        if self._tick_s <= polled_s:
            loop_time = LoopTime(self._front_s, self._answering_s, self._answers)
            self.router.tick(polled_s, loop_time if self._observed else None)
            self._front_s, self._answering_s, self._answers = 0.0, 0.0, 0
            self._pass_time(self._costs.tick_s * self._factor)
            self._tick_s += TICK_S
            self._wake()
        if self._wake_s <= polled_s:
            self._wake_s = INF
            self._wake()
        while self._changes and self._changes[-1][0] <= polled_s:
            _, kind, lane = self._changes.pop()
            self._change(kind, lane, self._now_s)
            self._wake()

    def _poll(self, polled_s: float) -> None:
        """Processes finished batches and row reads, and reads the requests that have arrived."""
        ends, arrival = self._ends, self._arrival
        while ends and ends[0][0] <= polled_s:
            ended = heappop(ends)[2]
            if isinstance(ended, Dispatch):
                self._ready.append(partial(self._end, ended))
            else:
                self._ready.append(partial(self._rows_read, ended))
        if self._at < len(arrival) and arrival[self._at] <= polled_s:
            self._arrivals.begin_reading(self._now_s, self._slept)
            self._slept = False
            while self._at < len(arrival) and arrival[self._at] <= polled_s:
                self._read(self._at)
                self._at += 1

    def _sleep(self, due_s: float, by_event: bool) -> None:
        """Advances time to the idle loop's next work.

        by_event: whether a socket or lane wakes it, no timer.
        """
        self._slept = True
        slept_s = due_s - self._now_s
        self._next_preemption_s += slept_s  # preemption of an idle core costs nothing
        self._now_s = due_s + self._wake_penalty_s(slept_s) * self._factor
        if by_event:
            self._now_s += self._costs.wake_s * self._factor
        if self._core:
            self._now_s = self._core.free_s(self._now_s)

    def _wake_penalty_s(self, slept_s: float) -> float:
        """Returns the extra seconds of the first work after a sleep, interpolated from `Costs.cooled`."""
        before_s = penalty_s = 0.0
        for knot_s, more_s in self._costs.cooled:
            if slept_s < knot_s:
                return penalty_s + (more_s - penalty_s) * (slept_s - before_s) / (knot_s - before_s)
            before_s, penalty_s = knot_s, more_s
        return penalty_s

    def _preempt(self) -> None:
        """Delays the loop by random preemptions."""
        costs = self._costs
        while self._now_s >= self._next_preemption_s:
            self._now_s += float(self._rng.exponential(costs.held_s))
            self._next_preemption_s = self._now_s + float(self._rng.exponential(1 / costs.held_rate))

    def _read(self, i: int) -> None:
        """Reads and submits a request. Its budget begins at the server's estimate of its arrival."""
        costs = self._costs
        self._arrivals.count_request()
        disturbed = self.router.state.disturbed
        since_s = self._arrivals.arrival().budget_start_s(self._budget[i], self._now_s, disturbed)
        rows, deadline_s = self._rows[i], since_s + self._budget[i]
        if self.router.reject_early(since_s, deadline_s, rows, self._now_s) is not None:
            self._spend(self._reject_s)
            self._ended(i, Status.REJECTED)
            return
        self._spend((costs.query_s + costs.row_s * rows) * READ_SHARE)
        query = Query(rows, since_s, deadline_s, payload=i)
        if self.router.submit(query, self._now_s) is not None:
            self._answer(i, Status.REJECTED)
            return
        misses = self._reads.misses(i)
        if any(misses):
            if self.router.hold(query, misses, self._now_s) is not None:
                self._answer(i, Status.REJECTED)
                return
            self._number += 1
            ready_s = self._ready_s[query] = self._now_s + self._reads.read_s(i)
            heappush(self._ends, (ready_s, self._number, query))
        self._wake()

    def _rows_read(self, query: Query) -> None:
        """Reports the end of a query's reads."""
        took_s = self._now_s - query.arrival_s
        del self._ready_s[query]
        self.router.rows_read(query, ReadSeconds(disk=took_s))
        self._wake()

    def _answer(self, i: int, status: Status) -> None:
        costs = self._costs
        if status is Status.ANSWERED:
            seconds = (costs.query_s + costs.row_s * self._rows[i]) * (1 - READ_SHARE)
            self._answering_s += self._spend(seconds)
            self._answers += 1
        else:
            self._spend(self._reject_s * (1 - READ_SHARE))
        self._ended(i, status)

    def _ended(self, i: int, status: Status) -> None:
        self._status[i] = status
        self._finish[i] = self._now_s

    def _wake(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._ready.append(self._gather)

    def _gather(self) -> None:
        """Schedules a dispatch pass for the next iteration, or runs it now if the queue's head is urgent."""
        if self.router.is_urgent(self._now_s):
            self._turn()
        else:
            self._ready.append(self._turn)

    def _turn(self) -> None:
        """Runs the dispatcher's pass: expires queries, dispatches to every free lane, sets the timer."""
        self._turn_scheduled = False
        router = self.router
        expired = router.expire(self._now_s)
        running = self._running
        for lane in tuple(router.lane_order):
            if running[lane] is None and self._alive[lane]:
                dispatch = router.next(lane, self._now_s)
                if dispatch is None:
                    continue
                self._spend(self._costs.turn_s - self._costs.after_s)
                service_s = self._execution.draw_s(dispatch, self._now_s, self._factor)
                if dispatch.waits:
                    ready_s = max(self._ready_s.get(part.query, 0.0) for part in dispatch.parts)
                    service_s += max(0.0, ready_s - self._now_s)
                if self._inline[lane]:
                    began_s = self._now_s
                    self._pass_time(service_s)
                    self._preempt()
                    stopped_s = self._stops.within_s(began_s, self._now_s) if self._stops else 0.0
                    took_s = service_s + stopped_s
                    self._complete(dispatch, took_s, max(0.0, self._now_s - began_s - took_s))
                else:
                    running[lane] = dispatch
                    self._number += 1
                    end_s = self._now_s + service_s
                    if self._stops:
                        end_s = self._stops.done_s(self._now_s, service_s)
                    heappush(self._ends, (end_s, self._number, dispatch))
        for query in expired:
            self._answer(query.payload, Status.EXPIRED)
        # at the same virtual time the router would decide the same again, so let some time pass
        wake_s = router.wake_s()
        self._wake_s = INF if wake_s is None else max(wake_s, self._now_s + 1e-6)

    def _end(self, dispatch: Dispatch) -> None:
        if self._running[dispatch.lane] is not dispatch:
            return  # the lane was killed meanwhile
        self._running[dispatch.lane] = None
        # as in the live server, the lane idles until the loop handles its completion
        self._complete(dispatch, self._now_s - dispatch.started_s)

    def _complete(self, dispatch: Dispatch, took_s: float, waited_s: float = 0.0) -> None:
        """Reports a finished batch and answers its queries. waited_s: for the core, beside took_s."""
        self.router.done(dispatch, self._now_s, took_s, waited_s)
        status = self._status
        for part in dispatch.parts:
            query = part.query
            i = query.payload
            if query.settled and not status[i] and query.done_rows >= query.rows:
                self._path[i] = query.path
                self._answer(i, Status.ANSWERED)
        self._ready.append(self._finish_requests)
        self._wake()

    def _finish_requests(self) -> None:
        self._spend(self._costs.after_s)

    def _spend(self, seconds: float) -> float:
        """Spends loop time outside of lanes. seconds: at calibration speed. Returns the slowed seconds."""
        seconds *= self._factor
        self._pass_time(seconds)
        self._front_s += seconds
        return seconds

    def _pass_time(self, seconds: float) -> None:
        """Advances time by work on the loop's core, including preemptions."""
        if self._core:
            self._now_s = self._core.done_s(self._now_s, seconds)
        else:
            self._now_s += seconds

    def _change(self, kind: str, lane: int, now_s: float) -> None:
        """Kills or restarts a lane."""
        if kind == "up":
            self._alive[lane] = True
            self.router.lane_up(lane, now_s)
            return
        self._alive[lane] = False
        self.router.lane_down(lane)
        dispatch = self._running[lane]
        if dispatch is not None:
            self._running[lane] = None
            for query in self.router.failed(dispatch, now_s):
                i = query.payload
                self._status[i] = Status.FAILED
                self._finish[i] = now_s
