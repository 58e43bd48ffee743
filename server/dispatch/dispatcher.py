"""Dispatches queries to lanes on one event loop; it takes the rows of requests and returns their answers.

The HTTP and gRPC fronts call `Dispatcher.submit`. The router (polyrec.planner.routing.router), which is pure
code, decides which query is admitted and where and when it executes. The executor runs its decisions on the
lanes (server/lanes). The dispatcher connects the two and owns all other side effects: it reads the clock,
sets timers and restarts dead lanes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from polyrec.planner.routing.latency.read_times import ReadSeconds
from polyrec.planner.routing.query import Dispatch, Query, Rejection, RejectReason
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.sharing.machine_time import MachineTime, ModelShare, SharingModel
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.server.clock import TIMER_S, clock
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Outbox, Pending, QueryPayload, fail
from polyrec.server.dispatch.cold_rows import ColdRows, LookedUpQueries
from polyrec.server.dispatch.control_loop import ControlLoop
from polyrec.server.dispatch.executor import ExecutionPath, Executor
from polyrec.server.dispatch.observer import Observer
from polyrec.server.dispatch.prefetcher import Prefetcher
from polyrec.server.dispatch.supervisor import LaneSupervisor
from polyrec.server.errors import DeadlinePassed, NotReady, Overloaded, RequestError
from polyrec.server.lanes.lane import Lane
from polyrec.server.tracing.trace import Trace


class Dispatcher:
    """Executes queries on the lanes of one plan. Use from one event loop only.

    paths: in the router's order.
    prefetcher: reads rows from disk for waiting queries.
    cold_rows: replaces the prefetcher; finds and holds queries whose rows are in slow tiers.
    """

    def __init__(
        self,
        router: Router,
        lanes: Sequence[Lane],
        paths: Sequence[ExecutionPath],
        observer: Observer,
        prefetcher: Prefetcher | None = None,
        cold_rows: ColdRows | None = None,
    ) -> None:
        self.router = router
        self._lanes = tuple(lanes)
        self._observer = observer
        self._prefetcher = prefetcher
        self.cold_rows = cold_rows
        self._arrived: list[Query] = []
        """New queries whose rows have not been looked up yet; used only with `cold_rows`."""
        self._to_read: list[tuple[LookedUpQueries, list[Query]]] = []
        """Held queries whose reads have not started yet."""
        self._last_path: int | None = None
        self._scheduled: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._closed = False
        self.sharing: SharingModel | None = None
        """This model's share of lane time and its turns; None unless other models may share the lanes."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: Outbox | None = None
        self._control = ControlLoop(router, observer, self._on_tick, self._take_answering)
        self._executor = Executor(router, lanes, paths, observer, self._control, self._freed, self._deliver)
        self._supervisor = LaneSupervisor(self._lanes, self._lane_restarted)
        self._shutdown_error: RequestError | None = None
        self.deaths = 0
        """Number of lanes that died."""

    @property
    def can_answer(self) -> bool:
        """Whether a live lane executes a path that the policy uses."""
        return bool(self.router.state.usable)

    @property
    def stalled(self) -> bool:
        """Whether no usable lane has returned its batch for seconds, long after it was due."""
        return self.router.all_stalled(clock())

    def share_loop(self, other: Dispatcher) -> None:
        """Shares accounting of the event loop's CPU time with another dispatcher on it."""
        self._control.share(other._control)

    def share_time(self, machine: MachineTime, places: Sequence[LanePlace], asked: ModelShare) -> None:
        """Starts to share lane time with the machine's other models. places: where each lane runs."""
        self.sharing = machine.join(self.router, places, asked, self._schedule_dispatch)

    def stop_sharing(self) -> None:
        """Stops sharing lane time; waiting queries execute without turns."""
        if self.sharing is not None:
            self.sharing.machine.leave(self.sharing)
            self.sharing = None

    def attach(self) -> None:
        """Starts to watch for lane deaths on the running loop; otherwise the first query does."""
        for lane in self._lanes:
            lane.attach()

    @property
    def overloaded(self) -> bool:
        """Whether this reading round has rejected a request, so that `reject_early` may reject others."""
        return self.router.overloaded

    @property
    def disturbed(self) -> bool:
        """Whether other programs delay an inline lane that has time for all that arrives."""
        return self.router.state.disturbed

    def reject_early(
        self, arrival_s: float, budget_s: float, rows: int | None, now_s: float
    ) -> Rejection | None:
        """Decides whether to reject a request before it is parsed; None: it may be parsed.

        rows: None if unknown.
        """
        return self.router.reject_early(arrival_s, arrival_s + budget_s, rows, now_s)

    def submit(
        self,
        rows: Rows,
        arrival_s: float,
        budget_s: float,
        priority: int = 0,
        best_only: bool = False,
        trace: Trace | None = None,
    ) -> Query:
        """Queues a query, whose result comes in `query.payload.answer`.

        best_only: whether the request insists on the best quality.
        Raises Overloaded, DeadlinePassed or NotReady if the query is not admitted. The answer may raise
        DeadlinePassed, FeatureError, Invalid, NotReady or Defect.
        """
        loop, outbox = self._loop, self._outbox
        if loop is None or outbox is None:
            # cached, since get_running_loop makes a system call in Python 3.11
            loop = self._loop = asyncio.get_running_loop()
            outbox = self._outbox = Outbox(loop)
        if self._shutdown_error is not None:
            raise self._shutdown_error
        query = Query(rows.rows, arrival_s, arrival_s + budget_s, priority, best_only)
        control = self._control
        control.idle_ticks = 0
        if not control.running:
            self.attach()
            control.start(loop)
        rejected = self.router.submit(query, clock())
        if rejected is not None:
            raise rejection(rejected.reason, rejected.retry_header_s, budget_s)
        query.payload = QueryPayload(rows, Pending(outbox), trace=trace)
        if self.cold_rows is not None:
            self._arrived.append(query)
        elif self._prefetcher is not None and None not in self._executor.active:
            self._prefetcher.request(self._last_path, rows)
        self._schedule_dispatch()
        return query

    def _look_up_rows(self, cold_rows: ColdRows) -> list[LookedUpQueries]:
        """Looks up the rows of newly arrived queries, and holds those with rows that are not in memory.

        If some are hot, returns the others, set aside until those were dispatched.
        """
        arrived = [query for query in self._arrived if not query.settled]
        self._arrived.clear()
        found = cold_rows.look_up(self._last_path, arrived)
        some_hot = any(looked_up.hot for looked_up in found)
        aside = []
        for looked_up in found:
            for query in looked_up.queries:
                query.payload.looked_up = looked_up
            if looked_up.hot:
                continue
            if not some_hot:
                self._hold_cold(cold_rows, looked_up)
                continue
            aside.append(looked_up)
            for query in looked_up.queries:
                self.router.set_aside(query)
        return aside

    def _hold_cold(self, cold_rows: ColdRows, looked_up: LookedUpQueries) -> None:
        """Holds those of the queries with rows that are not in memory."""
        cold_rows.find_cold(looked_up)
        held = []
        for query, misses in looked_up.cold.items():
            rejected = self.router.hold(query, misses, clock())
            if rejected is None:
                held.append(query)
            else:
                fail(query, rejection(rejected.reason, rejected.retry_header_s))
        if held:
            self._to_read.append((looked_up, held))

    def _put_back(self, cold_rows: ColdRows, aside: Sequence[LookedUpQueries]) -> None:
        """Queues queries that were set aside, and holds the cold ones."""
        for query in (query for looked_up in aside for query in looked_up.queries):
            self.router.put_back(query)
        for looked_up in aside:
            self._hold_cold(cold_rows, looked_up)
            if len(looked_up.cold) < len(looked_up.queries):
                self._schedule_dispatch()

    def _read_rows(self, cold_rows: ColdRows) -> None:
        """Starts the reads for held queries; called after hot queries were handed to the lanes."""
        for looked_up, held in self._to_read:
            waiting = [query for query in held if not query.settled]
            if waiting:
                cold_rows.read(looked_up, waiting, self._rows_read)
        self._to_read.clear()

    def _rows_read(self, query: Query, took_s: ReadSeconds) -> None:
        """Releases a held query once its missing rows have been read."""
        if not self._closed:
            self.router.rows_read(query, took_s)
            self._schedule_dispatch()

    def cancel(self, query: Query, error: Exception) -> None:
        """Removes a query from the queue and answers it with `error`."""
        self.router.cancel(query)
        fail(query, error)

    def fail_all(self, error: RequestError) -> None:
        """Answers every waiting and every later query with `error`."""
        self._shutdown_error = error
        if self._outbox is not None:
            for answer in tuple(self._outbox.open):
                answer.settle(error)

    def close(self) -> None:
        """Closes every lane, cancels waiting queries and rejects later ones (NotReady).

        Then drops its parts, which refer back to it: the garbage collector would never free such a cycle of a
        generation that existed when the server or an unload froze all objects (gc.freeze).
        """
        if self._closed:
            return
        self._closed = True
        if self._shutdown_error is None:
            # no lane is left to answer later queries
            self._shutdown_error = NotReady("this version is no longer served; retry")
        self.stop_sharing()
        self._executor.close()
        self._supervisor.close()
        self._control.close()
        if self._timer is not None:
            self._timer.cancel()
        for lane in self._lanes:
            lane.close()
        if self.cold_rows is not None:
            self.cold_rows.give_up()
        if self._outbox is not None:
            for answer in tuple(self._outbox.open):
                answer.settle(asyncio.CancelledError())
        self._lanes = ()
        del self._executor, self._supervisor, self._control

    async def drained(self) -> None:
        """Waits until every query has been answered."""
        while self.waiting:
            await asyncio.sleep(0.01)

    @property
    def waiting(self) -> int:
        """Number of queries without an answer."""
        return 0 if self._outbox is None else len(self._outbox.open)

    def _schedule_dispatch(self) -> None:
        loop = self._loop
        if loop is not None and self._scheduled is None:
            self._scheduled = loop.call_soon(self._dispatch_soon, loop)
            if self.sharing is not None:
                self.sharing.scheduled = True

    def _dispatch_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Dispatches after another loop iteration, or now if the earliest deadline requires it.

        The delay lets requests that reached the sockets meanwhile join the batch, which gives 25 to 50% more
        throughput at 16 connections. On an idle loop the extra iteration costs nothing.
        """
        if self.router.is_urgent(clock()):
            self._dispatch_all(loop)
        else:
            self._scheduled = loop.call_soon(self._dispatch_all, loop)

    def _dispatch_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Expires queries past their deadline, then starts the router's next dispatch on every free lane."""
        self._scheduled = None
        outbox = self._outbox
        if self._closed or outbox is None:
            return
        outbox.held = True
        sharing, cold_rows = self.sharing, self.cold_rows
        aside: list[LookedUpQueries] = []
        try:
            if self._arrived and cold_rows is not None:
                aside = self._look_up_rows(cold_rows)
            expired = self.router.expire(clock())
            for lane in tuple(self.router.lane_order):
                if self._executor.is_free(lane):
                    self._start_batch(lane, sharing)
            for query in expired:
                fail(query, DeadlinePassed(query.deadline_s - query.arrival_s))
        finally:
            outbox.held = False
            # now, since under overload the next iteration's reads take as long as a batch
            outbox.deliver()
            self._executor.end_executed()
            if aside and cold_rows is not None:
                self._put_back(cold_rows, aside)
        if self._to_read and cold_rows is not None:
            self._read_rows(cold_rows)
        if sharing is not None:
            if sharing.yielded and self._scheduled is None:
                self._scheduled = loop.call_soon(self._dispatch_all, loop)
            sharing.passed(self._scheduled is not None)
        self._set_timer(loop)

    def _start_batch(self, lane: int, sharing: SharingModel | None) -> None:
        """Starts the router's next dispatch on a free lane, if there is one and it is this model's turn."""
        now_s = clock()
        if sharing is not None and not sharing.may_start(lane):
            return
        dispatch = self.router.next(lane, now_s)
        if dispatch is None:
            return
        if sharing is not None:
            sharing.started(dispatch)
        self._last_path = dispatch.path
        self._executor.execute(lane, dispatch)

    def _freed(self, dispatch: Dispatch) -> None:
        if self.sharing is not None:
            self.sharing.ended(dispatch, clock() - dispatch.started_s)
        if self.router.state.queue.has_waiting:
            self._schedule_dispatch()

    def _deliver(self) -> None:
        if self._outbox is not None:
            self._outbox.deliver()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets a timer for the next time at which the router must act without an event."""
        due_s = self.router.wake_s()
        if due_s is None:
            due_s = math.inf
        if self._timer is not None:
            if due_s >= self._timer_s - 1e-4:
                return
            self._timer.cancel()
            self._timer = None
        if due_s < math.inf:
            self._timer_s = due_s
            self._timer = loop.call_later(max(TIMER_S, due_s - clock()), self._due, loop)

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._scheduled is None:
            self._dispatch_all(loop)

    def _on_tick(self) -> bool:
        """Dispatches waiting queries; returns whether any were waiting."""
        if self.sharing is not None:
            self.sharing.machine.tick_if_due(clock())
        if not self.waiting:
            return False
        self._schedule_dispatch()
        return True

    def _take_answering(self) -> tuple[float, int]:
        return (0.0, 0) if self._outbox is None else self._outbox.take_spent()

    def lane_died(self, lane: Lane) -> None:
        """Takes a lane whose process ended out of service and restarts it."""
        if self._closed:
            return
        index = self._lanes.index(lane)
        self.deaths += 1
        self.router.lane_down(index)
        self._observer.lane_alive(index, False)
        self._supervisor.restart(index)

    def _lane_restarted(self, lane: int) -> None:
        self.router.lane_up(lane, clock())
        self._observer.lane_alive(lane, True)
        self._schedule_dispatch()


def rejection(reason: RejectReason, retry_after_s: int, budget_s: float | None = None) -> RequestError:
    """Returns the error for a query that the router rejects. budget_s: mentioned in the message, if given."""
    if reason is RejectReason.UNAVAILABLE:
        return NotReady("no lane is alive; they are being restarted")
    if reason is RejectReason.EXPIRED:
        return DeadlinePassed(budget_s)
    return Overloaded(retry_after_s)
