"""Dispatches queries to lanes: the rows of requests go in, answers come out, on one event loop.

The router (polyrec.planner.routing.router) decides, as pure code, which query is admitted and where and when
it executes; the lanes (server/lanes) execute. The dispatcher has the effects: it reads the clock, sets
timers, encodes rows into batches, distributes probabilities over queries, and handles failed batches and dead
lanes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.stack import TierStack
from polyrec.planner.routing.query import Dispatch, Part, Query, Rejection, RejectReason
from polyrec.planner.routing.router import Router
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Outbox, Pending, QueryPayload, fail
from polyrec.server.dispatch.control_loop import ControlLoop
from polyrec.server.dispatch.control_loop import clock as clock
from polyrec.server.dispatch.observer import ExecutedBatch, Observer
from polyrec.server.dispatch.parts import encode_parts, scatter
from polyrec.server.dispatch.prefetcher import Prefetcher
from polyrec.server.dispatch.supervisor import LaneSupervisor
from polyrec.server.errors import DeadlinePassed, Defect, NotReady, Overloaded, RequestError
from polyrec.server.lanes.lane import Executed, Lane, LaneDied
from polyrec.server.lanes.tiered_runtime import BatchView
from polyrec.server.tracing.trace import Trace, record_execution

log = logging.getLogger("polyrec.dispatcher")

DEFECTS_UNTIL_LANE_IS_SUSPECT = 3
"""Consecutive failed queries after which the lane is treated as failed, not the queries."""


@dataclass(slots=True, eq=False)
class ActiveDispatch:
    """A dispatch that a lane works on, in groups of query parts that execute one after another.

    batch: the one in the lane. batch_view: its view of the tiers, if the path's rows are in tiers.
    encoding_s: when its encoding began; encode_s: seconds that it took. broken: queries that failed alone.
    executed: batches that succeeded. looping: `_execute_groups` is on the stack. in_lane: not settled yet.
    """

    dispatch: Dispatch
    groups: list[list[Part]]
    batch: Batch | None = None
    batch_view: BatchView | None = None
    encoding_s: float = 0.0
    encode_s: float = 0.0
    broken: int = 0
    executed: int = 0
    looping: bool = False
    in_lane: bool = False


class Dispatcher:
    """Executes queries on the lanes of one plan. Used from one event loop only.

    encoders: one for each path. paths: their names, as the lanes know them. stacks: the tiers of each path,
    None where all its rows are in memory. prefetcher: reads rows from disk for waiting queries.
    """

    def __init__(
        self,
        router: Router,
        lanes: Sequence[Lane],
        paths: Sequence[str],
        encoders: Sequence[Encoder],
        observer: Observer,
        stacks: Sequence[TierStack | None] = (),
        prefetcher: Prefetcher | None = None,
    ) -> None:
        self.router = router
        self._lanes = tuple(lanes)
        self._paths = tuple(paths)
        self._encoders = tuple(encoders)
        self._observer = observer
        self._stacks = tuple(stacks) or (None,) * len(self._paths)
        self._prefetcher = prefetcher
        self._last_path: int | None = None
        self._active: list[ActiveDispatch | None] = [None] * len(self._lanes)
        self._defects = [0] * len(self._lanes)
        self._dispatch_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: Outbox | None = None
        self._control = ControlLoop(router, observer, self._on_tick, self._answering)
        self._supervisor = LaneSupervisor(self._lanes, self._lane_restarted)
        self._shutdown_error: RequestError | None = None

    @property
    def can_answer(self) -> bool:
        """Whether any lane is alive that executes a path which the policy uses."""
        return bool(self.router.state.usable)

    def attach(self) -> None:
        """Watches for lane deaths on the running loop; otherwise that begins with the first query."""
        for lane in self._lanes:
            lane.attach()

    def reject_early(self, arrival_s: float, budget_s: float, size: int, now_s: float) -> Rejection | None:
        """Decides whether to reject a request before it is parsed; None: it may be parsed.

        size: bytes of its body.
        """
        return self.router.reject_early(arrival_s, arrival_s + budget_s, size, now_s)

    def submit(
        self,
        rows: Rows,
        arrival_s: float,
        budget_s: float,
        priority: int = 0,
        required: bool = False,
        trace: Trace | None = None,
        size: float = math.inf,
    ) -> Query:
        """Queues a query, whose result comes in `query.payload.answer`. size: bytes of its body.

        Raises Overloaded, DeadlinePassed or NotReady if the query is not admitted. The answer may raise
        DeadlinePassed, FeatureError, Invalid, NotReady or Defect.
        """
        loop, outbox = self._loop, self._outbox
        if loop is None or outbox is None:
            # kept, since get_running_loop makes a system call in Python 3.11
            loop = self._loop = asyncio.get_running_loop()
            outbox = self._outbox = Outbox(loop)
        if self._shutdown_error is not None:
            raise self._shutdown_error
        query = Query(rows.rows, arrival_s, arrival_s + budget_s, priority, required)
        control = self._control
        control.idle_ticks = 0
        if not control.running:
            self.attach()
            control.start(loop)
        rejected = self.router.offer(query, clock(), size)
        if rejected is not None:
            raise rejection(rejected.reason, rejected.retry_header_s, budget_s)
        query.payload = QueryPayload(rows, Pending(outbox), trace=trace)
        if self._prefetcher is not None and None not in self._active:
            self._prefetcher.request(self._last_path, rows)
        self._schedule_dispatch()
        return query

    def cancel(self, query: Query, error: Exception) -> None:
        """Removes a query from the queue; its answer is `error`."""
        self.router.cancel(query)
        query.settled = True
        fail(query, error)

    def fail_all(self, error: RequestError) -> None:
        """Answers every waiting query, and every later one, with `error`."""
        self._shutdown_error = error
        if self._outbox is not None:
            for answer in tuple(self._outbox.open):
                answer.settle(error)

    def close(self) -> None:
        """Ends every lane. Queries still waiting are cancelled."""
        self._closed = True
        self._supervisor.close()
        self._control.close()
        if self._timer is not None:
            self._timer.cancel()
        for lane in self._lanes:
            lane.close()
        if self._outbox is not None:
            for answer in tuple(self._outbox.open):
                answer.settle(asyncio.CancelledError())

    async def drained(self) -> None:
        """Waits until every query has its answer."""
        while self.waiting:
            await asyncio.sleep(0.01)

    @property
    def waiting(self) -> int:
        """Number of queries without an answer."""
        return 0 if self._outbox is None else len(self._outbox.open)

    def _schedule_dispatch(self) -> None:
        loop = self._loop
        if loop is not None and not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            loop.call_soon(self._dispatch_soon, loop)

    def _dispatch_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Dispatches after another loop iteration, or now if the earliest deadline requires it.

        Requests that reached the sockets while earlier ones were parsed join the batch, which gives 25 to 50%
        more throughput at 16 connections. The iteration of an idle loop costs nothing.
        """
        if self.router.is_urgent(clock()):
            self._dispatch_all(loop)
        else:
            loop.call_soon(self._dispatch_all, loop)

    def _dispatch_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Expires queries past their deadline, and gives every free lane the router's next dispatch."""
        self._dispatch_scheduled = False
        if self._closed:
            return
        now_s = clock()
        expired = self.router.expire(now_s)
        for i in tuple(self.router.lane_order):
            if self._active[i] is None and self._lanes[i].alive:
                dispatch = self.router.next(i, now_s)
                if dispatch is not None:
                    active = self._active[i] = ActiveDispatch(dispatch, [dispatch.parts])
                    self._last_path = dispatch.path
                    self._execute(i, active)
                    now_s = clock()
        for query in expired:
            fail(query, DeadlinePassed(query.deadline_s - query.arrival_s))
        # Now, not after the next iteration's reading, which takes as long as a batch when overloaded.
        self._deliver()
        self._set_timer(loop)

    def _deliver(self) -> None:
        if self._outbox is not None:
            self._outbox.deliver()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets one timer, for the earliest time at which the router has something to do without an event."""
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
            self._timer = loop.call_later(max(0.0, due_s - clock()), self._due, loop)

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._schedule_dispatch()

    def _on_tick(self) -> bool:
        """Dispatches what waits; returns whether anything does."""
        if not self.waiting:
            return False
        self._schedule_dispatch()
        return True

    def _answering(self) -> tuple[float, int]:
        return (0.0, 0) if self._outbox is None else self._outbox.spent()

    def _execute(self, lane: int, active: ActiveDispatch) -> None:
        """Executes the remaining groups of a dispatch, and counts the processor time spent here."""
        began_s = time.thread_time()
        self._execute_groups(lane, active)
        self._control.executing_s += time.thread_time() - began_s

    def _execute_groups(self, lane: int, active: ActiveDispatch) -> None:
        """Encodes each group and hands it to the lane; then ends the dispatch.

        An inline lane settles before it returns, and the loop goes on; otherwise `_settled` continues.
        """
        active.looping = True
        while active.groups:
            parts = [p for p in active.groups.pop() if not p.query.payload.answer.done()]
            start = clock()
            stack = self._stacks[active.dispatch.path]
            batch_view = None if stack is None else BatchView.enter(stack)
            encoder = self._encoders[active.dispatch.path] if batch_view is None else batch_view.encoder
            try:
                parts, batch = encode_parts(parts, encoder)
            except Exception as e:
                _leave(batch_view)
                self._broken(lane, active, parts, e)
                continue
            if batch is None:
                _leave(batch_view)
                continue
            if batch_view is not None:
                active.batch_view, batch = batch_view, batch_view.attach(batch)
            active.batch, active.encoding_s, active.encode_s = batch, start, clock() - start

            def settle(result: Executed | Exception, parts: list[Part] = parts) -> None:
                self._settled(lane, active, parts, result)

            active.in_lane = True
            self._lanes[lane].execute(self._paths[active.dispatch.path], batch, settle)
            if active.in_lane:
                active.looping = False
                return
        self._end(lane, active)

    def _settled(
        self, lane: int, active: ActiveDispatch, parts: list[Part], result: Executed | Exception
    ) -> None:
        """Answers the queries of an executed batch, and continues with the next group."""
        active.in_lane = False
        batch_view, active.batch_view = active.batch_view, None
        _leave(batch_view)
        if self._closed:
            return
        if isinstance(result, LaneDied):
            self._died(lane, active)
            return
        if isinstance(result, Exception):
            self._broken(lane, active, parts, result)
        else:
            active.executed += 1
            self._scatter(lane, active, parts, result, batch_view)
        if not active.looping:
            self._execute(lane, active)
            self._deliver()

    def _broken(self, lane: int, active: ActiveDispatch, parts: list[Part], error: Exception) -> None:
        """Retries the parts of a failed group one by one, so that a query that breaks a batch fails alone."""
        if len(parts) > 1:
            active.groups.extend([part] for part in parts)
            return
        active.broken += 1
        log.error("a query failed on lane %s", self._lanes[lane].name, exc_info=error)
        if active.executed or self._defects[lane] + active.broken < DEFECTS_UNTIL_LANE_IS_SUSPECT:
            fail(parts[0].query, Defect("the prediction failed; the server's log has the details"))

    def _end(self, lane: int, active: ActiveDispatch) -> None:
        """Frees the lane and reports the dispatch to the router."""
        now_s = clock()
        dispatch = active.dispatch
        self._active[lane] = None
        if active.broken and not active.executed:
            self._defects[lane] += active.broken
            if self._defects[lane] >= DEFECTS_UNTIL_LANE_IS_SUSPECT:
                for query in self.router.failed(dispatch, now_s):
                    fail(query, Defect("the prediction failed; the server's log has the details"))
            else:
                self.router.done(dispatch, now_s, dispatch.median_s)
        else:
            self._defects[lane] = 0
            untypical = active.broken or not active.executed
            self.router.done(dispatch, now_s, dispatch.median_s if untypical else now_s - dispatch.started_s)
        self._schedule_dispatch()

    def _scatter(
        self,
        lane: int,
        active: ActiveDispatch,
        parts: list[Part],
        executed: Executed,
        batch_view: BatchView | None,
    ) -> None:
        dispatch, batch = active.dispatch, active.batch
        assert batch is not None
        probabilities = executed.probabilities
        rows = probabilities.size
        now_s = clock()
        took_s = now_s - dispatch.started_s
        traces = [w.trace for p in parts if (w := p.query.payload).trace is not None and not w.answer.done()]
        if traces:
            record_execution(
                traces,
                self._lanes[lane].name,
                self._paths[dispatch.path],
                rows,
                len(parts),
                active.encoding_s,
                active.encode_s,
                executed.embed_s,
                executed.dense_s,
                now_s,
            )
        scatter(dispatch, parts, probabilities, took_s, batch_view is not None and batch_view.lost > 0)
        self._observer.batch_executed(
            ExecutedBatch(
                lane,
                dispatch.path,
                batch,
                len(parts),
                active.encode_s,
                executed.embed_s,
                executed.dense_s,
                took_s,
                None if batch_view is None else batch_view.encoder,
            )
        )

    def _died(self, lane: int, active: ActiveDispatch) -> None:
        """Requeues the queries of a dead lane if their deadlines allow; `lane_died` restarts the lane."""
        now_s = clock()
        self._active[lane] = None
        self.router.lane_down(lane, now_s)
        for query in self.router.failed(active.dispatch, now_s):
            if query.deadline_s <= now_s:
                fail(query, DeadlinePassed(query.deadline_s - query.arrival_s))
            else:
                fail(
                    query, NotReady("the lane that executed the query died, and no other can answer in time")
                )
        self._schedule_dispatch()

    def lane_died(self, lane: int) -> None:
        """Takes a lane out of service, as its process ended, and restarts it."""
        if self._closed:
            return
        self.router.lane_down(lane, clock())
        self._observer.lane_alive(lane, False)
        self._supervisor.restart(lane)

    def _lane_restarted(self, lane: int) -> None:
        self.router.lane_up(lane, clock())
        self._observer.lane_alive(lane, True)
        self._schedule_dispatch()


def rejection(reason: RejectReason, retry_after_s: int, budget_s: float | None = None) -> RequestError:
    """The error for a query that the router rejects. budget_s: named in the message, if given."""
    if reason is RejectReason.UNAVAILABLE:
        return NotReady("no lane is alive; they are being restarted")
    if reason is RejectReason.EXPIRED:
        return DeadlinePassed(budget_s)
    return Overloaded(retry_after_s)


def _leave(batch_view: BatchView | None) -> None:
    if batch_view is not None:
        batch_view.leave()
