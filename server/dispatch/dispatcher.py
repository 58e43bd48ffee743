"""The dispatcher: the rim around the router. Requests' rows go in, answers come out, on one event loop.

`polyrec.planner.routing.router.Router` decides which query is taken, refused, or executed where and when; the
lanes (`server/lanes`) execute. Here are the effects: the clock, the timers, the answers that requests
wait on, encoding rows into batches, scattering probabilities over queries, and what to do when a
batch breaks or a lane dies.
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
from polyrec.planner.routing.latency.front_cost import LoopTime
from polyrec.planner.routing.query import Dispatch, Part, Query, Rejection, RejectReason
from polyrec.planner.routing.router import Router
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Outbox, Pending, Waiting, fail
from polyrec.server.dispatch.observer import Batched, Observer
from polyrec.server.dispatch.parts import encoded, scatter
from polyrec.server.dispatch.prefetcher import Ahead
from polyrec.server.errors import DeadlinePassed, Defect, NotReady, Overloaded, RequestError
from polyrec.server.lanes.lane import Executed, Lane, LaneDied
from polyrec.server.lanes.tier_reading import Reading
from polyrec.server.tracing.trace import Trace
from polyrec.server.tracing.trace import executed as tell

log = logging.getLogger("polyrec.dispatcher")

clock = time.perf_counter

TICK_S = 0.1
IDLE_TICKS = 50
"""The control loop sleeps after this many ticks without a query, and wakes with the next one."""
DEFECTS_UNTIL_LANE_IS_SUSPECT = 3
RESTART_FIRST_S, RESTART_MOST_S = 0.05, 5.0


@dataclass(slots=True, eq=False)
class Running:
    """A dispatch on its way through a lane: groups of parts still to be executed, one after another.

    reading: of the batch in the lane, where the path's rows are in tiers.
    """

    dispatch: Dispatch
    groups: list[list[Part]]
    batch: Batch | None = None
    reading: Reading | None = None
    encoding_s: float = 0.0
    encode_s: float = 0.0
    broken: int = 0
    executed: int = 0
    looping: bool = False
    in_lane: bool = False


class Dispatcher:
    """Executes queries on the lanes of one plan. Used from one event loop only.

    encoders: one for each path. paths: their names, as the lanes know them. stacks: the tiers of each path,
    None (or nothing) where all its rows are in memory. ahead: reads ahead for queries that wait.
    """

    def __init__(
        self,
        router: Router,
        lanes: Sequence[Lane],
        paths: Sequence[str],
        encoders: Sequence[Encoder],
        observer: Observer,
        stacks: Sequence[TierStack | None] = (),
        ahead: Ahead | None = None,
    ) -> None:
        self.router = router
        self._lanes = tuple(lanes)
        self._paths = tuple(paths)
        self._encoders = tuple(encoders)
        self._observer = observer
        self._stacks = tuple(stacks) or (None,) * len(self._paths)
        self._ahead = ahead
        self._latest: int | None = None
        self._running: list[Running | None] = [None] * len(self._lanes)
        self._defects = [0] * len(self._lanes)
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._ticking = False
        self._idle_ticks = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: Outbox | None = None
        self._restarts: set[asyncio.Task[None]] = set()
        self._spent_s = self._executing_s = 0.0
        self._given_up: RequestError | None = None

    @property
    def can_answer(self) -> bool:
        """Whether any lane is alive that executes a path which the policy uses."""
        return bool(self.router.state.usable)

    def attach(self) -> None:
        """Hears of lanes' deaths from now on, on the running loop; else from the first query on."""
        for lane in self._lanes:
            lane.attach()

    def reject_early(self, arrival_s: float, budget_s: float, size: int, now_s: float) -> Rejection | None:
        """Why a request with a body of `size` bytes is rejected before it is parsed; None: it is not."""
        return self.router.reject_early(arrival_s, arrival_s + budget_s, size, now_s)

    def ask(
        self,
        rows: Rows,
        arrival_s: float,
        budget_s: float,
        priority: int = 0,
        required: bool = False,
        trace: Trace | None = None,
        size: float = math.inf,
    ) -> Query:
        """Queues a query; `query.payload.answer` is what to wait on.

        It raises DeadlinePassed, FeatureError, Invalid, NotReady or Defect. Raises Overloaded, DeadlinePassed
        or NotReady at once if the query is not taken. size: bytes of its body.
        """
        loop, outbox = self._loop, self._outbox
        if loop is None or outbox is None:
            # once: asking costs Python 3.11 a system call
            loop = self._loop = asyncio.get_running_loop()
            outbox = self._outbox = Outbox(loop)
        if self._given_up is not None:
            raise self._given_up
        query = Query(rows.rows, arrival_s, arrival_s + budget_s, priority, required)
        self._idle_ticks = 0
        if not self._ticking:
            self._ticking = True
            self._spent_s, self._executing_s = time.thread_time(), 0.0
            self.attach()
            loop.call_later(TICK_S, self._tick, loop, clock() + TICK_S)
        refused = self.router.offer(query, clock(), size)
        if refused is not None:
            if refused.reason is RejectReason.EXPIRED:
                raise DeadlinePassed(budget_s)
            raise rejection(refused.reason, max(1, math.ceil(refused.retry_after_s)))
        query.payload = Waiting(rows, Pending(outbox), trace=trace)
        if self._ahead is not None and None not in self._running:
            self._ahead.wanted(self._latest, rows)
        self._wake()
        return query

    def gone(self, query: Query, error: Exception) -> None:
        """Nobody waits for this query any more: it leaves the queue, its answer is `error`."""
        self.router.cancel(query)
        query.settled = True
        fail(query, error)

    def give_up(self, error: RequestError) -> None:
        """Answers all that waits, and all that is asked from now on, with `error`."""
        self._given_up = error
        if self._outbox is not None:
            for answer in tuple(self._outbox.open):
                answer.settle(error)

    def close(self) -> None:
        """Ends every lane. Queries still waiting are cancelled."""
        self._closed = True
        for task in self._restarts:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for lane in self._lanes:
            lane.close()
        if self._outbox is not None:
            for answer in tuple(self._outbox.open):
                answer.settle(asyncio.CancelledError())

    async def drained(self) -> None:
        """Returns once no query waits."""
        while self.waiting:
            await asyncio.sleep(0.01)

    @property
    def waiting(self) -> int:
        """Queries that have no answer yet."""
        return 0 if self._outbox is None else len(self._outbox.open)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not self._turning:
            self._turning = True
            loop.call_soon(self._gather, loop)

    def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Another round of the loop before the turn, unless what waits has no time for it.

        Whatever has reached the sockets while the first round was parsed joins the batch. That is worth a
        quarter to a half more throughput at 16 connections, and an idle loop turns at once.
        """
        if self.router.is_urgent(clock()):
            self._turn(loop)
        else:
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answers what is overdue, and gives every free lane the work that the router has for it."""
        self._turning = False
        if self._closed:
            return
        now_s = clock()
        expired = self.router.expire(now_s)
        for i in tuple(self.router.lane_order):
            if self._running[i] is None and self._lanes[i].alive:
                dispatch = self.router.next(i, now_s)
                if dispatch is not None:
                    running = self._running[i] = Running(dispatch, [dispatch.parts])
                    self._latest = dispatch.path
                    self._execute(i, running)
                    now_s = clock()
        for query in expired:
            fail(query, DeadlinePassed(query.deadline_s - query.arrival_s))
        # Not after the next round of reading, which past capacity takes as long as a batch.
        self._deliver()
        self._arm(loop)

    def _deliver(self) -> None:
        if self._outbox is not None:
            self._outbox.deliver()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer, for the earliest moment at which something is due although nothing happens."""
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
        self._wake()

    def _tick(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        if self._closed:
            return
        now_s = clock()
        spent_s = time.thread_time()
        all_s, outbox = spent_s - self._spent_s - self._executing_s, self._outbox
        answering = (0.0, 0) if outbox is None else outbox.spent()
        self.router.tick(now_s, LoopTime(all_s, *answering))
        self._spent_s, self._executing_s = spent_s, 0.0
        self._observer.ticked(max(0.0, now_s - due_s), clock() - now_s)
        self._idle_ticks += 1
        if self.waiting or self._idle_ticks < IDLE_TICKS:
            loop.call_later(TICK_S, self._tick, loop, clock() + TICK_S)
            if self.waiting:
                self._wake()
        else:
            self._ticking = False

    def _execute(self, lane: int, running: Running) -> None:
        """Encodes a group of parts and hands it to the lane, group by group; then ends the dispatch.

        An inline lane settles before it returns: then the loop here goes on, else `_settled` comes back.
        """
        began_s = time.thread_time()
        self._groups(lane, running)
        self._executing_s += time.thread_time() - began_s

    def _groups(self, lane: int, running: Running) -> None:
        running.looping = True
        while running.groups:
            parts = [p for p in running.groups.pop() if not p.query.payload.answer.done()]
            start = clock()
            stack = self._stacks[running.dispatch.path]
            reading = None if stack is None else Reading.begin(stack)
            encoder = self._encoders[running.dispatch.path] if reading is None else reading.encoder
            try:
                parts, batch = encoded(parts, encoder)
            except Exception as e:
                _end(reading)
                self._broken(lane, running, parts, e)
                continue
            if batch is None:
                _end(reading)
                continue
            if reading is not None:
                running.reading, batch = reading, reading.of(batch)
            running.batch, running.encoding_s, running.encode_s = batch, start, clock() - start

            def settle(result: Executed | Exception, parts: list[Part] = parts) -> None:
                self._settled(lane, running, parts, result)

            running.in_lane = True
            self._lanes[lane].execute(self._paths[running.dispatch.path], batch, settle)
            if running.in_lane:
                running.looping = False
                return
        self._end(lane, running)

    def _settled(self, lane: int, running: Running, parts: list[Part], result: Executed | Exception) -> None:
        """Back on the loop: scatters what was executed over the queries, and goes on."""
        running.in_lane = False
        reading, running.reading = running.reading, None
        _end(reading)
        if self._closed:
            return
        if isinstance(result, LaneDied):
            self._died(lane, running)
            return
        if isinstance(result, Exception):
            self._broken(lane, running, parts, result)
        else:
            running.executed += 1
            self._scatter(lane, running, parts, result, reading)
        if not running.looping:
            self._execute(lane, running)
            self._deliver()

    def _broken(self, lane: int, running: Running, parts: list[Part], error: Exception) -> None:
        """The parts of a failed group again, each alone: a query that breaks a batch takes nobody with it."""
        if len(parts) > 1:
            running.groups.extend([part] for part in parts)
            return
        running.broken += 1
        log.error("a query failed on lane %s", self._lanes[lane].name, exc_info=error)
        if running.executed or self._defects[lane] + running.broken < DEFECTS_UNTIL_LANE_IS_SUSPECT:
            fail(parts[0].query, Defect("the prediction failed; the server's log has the details"))

    def _end(self, lane: int, running: Running) -> None:
        """The lane is free again."""
        now_s = clock()
        dispatch = running.dispatch
        self._running[lane] = None
        if running.broken and not running.executed:
            self._defects[lane] += running.broken
            if self._defects[lane] >= DEFECTS_UNTIL_LANE_IS_SUSPECT:
                for query in self.router.failed(dispatch, now_s):
                    fail(query, Defect("the prediction failed; the server's log has the details"))
            else:
                self.router.done(dispatch, now_s, dispatch.median_s)
        else:
            self._defects[lane] = 0
            untypical = running.broken or not running.executed
            self.router.done(dispatch, now_s, dispatch.median_s if untypical else now_s - dispatch.started_s)
        self._wake()

    def _scatter(
        self, lane: int, running: Running, parts: list[Part], executed: Executed, reading: Reading | None
    ) -> None:
        dispatch, batch = running.dispatch, running.batch
        assert batch is not None
        probabilities = executed.probabilities
        rows = probabilities.size
        now_s = clock()
        took_s = now_s - dispatch.started_s
        traces = [w.trace for p in parts if (w := p.query.payload).trace is not None and not w.answer.done()]
        if traces:
            tell(
                traces,
                self._lanes[lane].name,
                self._paths[dispatch.path],
                rows,
                len(parts),
                running.encoding_s,
                running.encode_s,
                executed.embed_s,
                executed.dense_s,
                now_s,
            )
        scatter(dispatch, parts, probabilities, took_s, reading is not None and reading.lost > 0)
        self._observer.batch_executed(
            Batched(
                lane,
                dispatch.path,
                batch,
                len(parts),
                running.encode_s,
                executed.embed_s,
                executed.dense_s,
                took_s,
                None if reading is None else reading.encoder,
            )
        )

    def _died(self, lane: int, running: Running) -> None:
        """Its queries go elsewhere if their deadlines allow; `lane_died` sees to the lane itself, which has
        logged it."""
        now_s = clock()
        self._running[lane] = None
        self.router.lane_down(lane, now_s)
        for query in self.router.failed(running.dispatch, now_s):
            if query.deadline_s <= now_s:
                fail(query, DeadlinePassed(query.deadline_s - query.arrival_s))
            else:
                fail(
                    query, NotReady("the lane that executed the query died, and no other can answer in time")
                )
        self._wake()

    def lane_died(self, lane: int) -> None:
        """A lane's process ended, working or idle: it is out at once, and started again."""
        if self._closed:
            return
        self.router.lane_down(lane, clock())
        self._observer.lane_alive(lane, False)
        task = asyncio.get_running_loop().create_task(self._restart(lane))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _restart(self, lane: int) -> None:
        delay_s = RESTART_FIRST_S
        while not self._closed:
            try:
                await self._lanes[lane].restart()
            except Exception as e:
                log.error("lane %s does not start: %s; again in %g s", self._lanes[lane].name, e, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RESTART_MOST_S)
            else:
                log.warning("lane %s is back", self._lanes[lane].name)
                self.router.lane_up(lane, clock())
                self._observer.lane_alive(lane, True)
                self._wake()
                return


def rejection(why: RejectReason, retry_after_s: int) -> RequestError:
    """The error for a query that the router rejects."""
    if why is RejectReason.UNAVAILABLE:
        return NotReady("no lane is alive; they are being restarted")
    if why is RejectReason.EXPIRED:
        return DeadlinePassed()
    return Overloaded(retry_after_s)


def _end(reading: Reading | None) -> None:
    if reading is not None:
        reading.end()
