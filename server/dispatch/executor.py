"""Executes the router's dispatches on lanes.

The dispatcher (server/dispatch/dispatcher.py) calls `Executor.execute` with a free lane. The executor encodes
the queries as a batch, hands it to the lane and distributes the result over the queries. A batch that fails
is retried query by query, so that a query which breaks it fails alone. Queries on a lane that dies return to
the queue if their deadlines allow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.stack import TierStack
from polyrec.planner.routing.query import Dispatch, Part, Query
from polyrec.planner.routing.router import Router
from polyrec.server.clock import clock
from polyrec.server.dispatch.answer import fail
from polyrec.server.dispatch.cold_rows import LookedUpQueries
from polyrec.server.dispatch.control_loop import ControlLoop
from polyrec.server.dispatch.observer import ExecutedBatch, Observer
from polyrec.server.dispatch.parts import encode_parts, scatter
from polyrec.server.errors import DeadlinePassed, Defect, NotReady
from polyrec.server.lanes.lane import Executed, Lane, LaneDied
from polyrec.server.lanes.tiered_runtime import BatchView
from polyrec.server.priority import ThreadWaits
from polyrec.server.tracing.trace import StageTimes, record_execution

log = logging.getLogger("polyrec.dispatcher")

DEFECTS_UNTIL_LANE_IS_SUSPECT = 3
"""Consecutive failed queries after which the lane is blamed instead of the queries."""


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionPath:
    """One path as the executor needs it.

    name: as lanes know it. stack: the tiers of its rows, None if all are in memory.
    """

    name: str
    encoder: Encoder
    stack: TierStack | None = None


@dataclass(slots=True, eq=False)
class ActiveDispatch:
    """A dispatch in progress on a lane, as groups of query parts that execute one after another.

    batch: the batch in the lane.
    batch_view: the batch's view of the tiers, None if the path's rows are all in memory.
    encode_began_s: time at which encoding of the batch began.
    encode_s: duration of encoding.
    broken: queries that failed alone.
    executed: number of batches that succeeded.
    looping: whether `_execute_groups` is on the stack.
    in_lane: whether a batch was handed to the lane and is not settled yet.
    ended_s: time at which the last group was settled.
    loop_waited_s: seconds for which the event loop waited for a CPU while an inline lane executed.
    worker_waited_s: seconds for which a lane that uses only spare CPU time waited for a CPU.
    """

    dispatch: Dispatch
    groups: list[list[Part]]
    batch: Batch | None = None
    batch_view: BatchView | None = None
    encode_began_s: float = 0.0
    encode_s: float = 0.0
    broken: list[Query] = field(default_factory=list)
    executed: int = 0
    looping: bool = False
    in_lane: bool = False
    ended_s: float = 0.0
    loop_waited_s: float = 0.0
    worker_waited_s: float = 0.0


class Executor:
    """The executions of one dispatcher, one at a time on each lane.

    paths: in the router's order.
    freed: called with each dispatch that has ended, once its lane is free or its queries are queued again.
    deliver: called when queries have answers.
    control: receives the CPU seconds spent.
    active: the dispatch in progress by lane, None for a free lane.
    """

    def __init__(
        self,
        router: Router,
        lanes: Sequence[Lane],
        paths: Sequence[ExecutionPath],
        observer: Observer,
        control: ControlLoop,
        freed: Callable[[Dispatch], None],
        deliver: Callable[[], None],
    ) -> None:
        self.observer = observer
        self.active: list[ActiveDispatch | None] = [None] * len(lanes)
        self._router = router
        self._lanes = tuple(lanes)
        self._paths = tuple(paths)
        self._control = control
        self._freed, self._deliver = freed, deliver
        self._defects = [0] * len(self._lanes)
        self._waits = ThreadWaits()
        self._closed = False
        self._ended: list[tuple[int, ActiveDispatch]] = []

    def is_free(self, lane: int) -> bool:
        """Whether a lane is alive and idle."""
        return self.active[lane] is None and self._lanes[lane].alive

    def execute(self, lane: int, dispatch: Dispatch) -> None:
        """Starts a dispatch on a free lane; an inline lane has executed it when this returns.

        The lane counts as busy until `end_executed`.
        """
        active = self.active[lane] = ActiveDispatch(dispatch, [dispatch.parts])
        self._execute(lane, active)

    def end_executed(self) -> None:
        """Frees lanes whose dispatches have ended, and reports those dispatches to the router.

        Call it after delivering the answers, so that no client waits for the router's bookkeeping.
        """
        ended, self._ended = self._ended, []
        for lane, active in ended:
            self._end(lane, active)

    def close(self) -> None:
        """Discards all results from now on."""
        self._closed = True

    def _execute(self, lane: int, active: ActiveDispatch) -> None:
        """Executes the remaining groups of a dispatch, and records the CPU time spent on the event loop."""
        began_s = time.thread_time()
        self._execute_groups(lane, active)
        cpu_s = time.thread_time() - began_s
        self._control.executing_s += cpu_s
        if self._lanes[lane].kind == "inline":
            active.loop_waited_s += self._waits.within_s(active.ended_s - active.dispatch.started_s - cpu_s)

    def _execute_groups(self, lane: int, active: ActiveDispatch) -> None:
        """Encodes groups and hands them to the lane one by one; the dispatch ends after the last group.

        An inline lane settles a group before `execute` returns, so the loop goes on; for other lanes the loop
        stops and `_settled` continues it.
        """
        active.looping = True
        while active.groups:
            parts, batch = self._encode(lane, active, active.groups.pop())
            if batch is None:
                continue

            def settle(result: Executed | Exception, parts: list[Part] = parts) -> None:
                self._settled(lane, active, parts, result)

            active.in_lane = True
            try:
                self._lanes[lane].execute(self._paths[active.dispatch.path].name, batch, settle)
            except Exception as e:
                if not active.in_lane:
                    raise
                # the lane will not settle it, and would stay busy forever
                settle(e)
            if active.in_lane:
                active.looping = False
                return
        active.ended_s = clock()
        self._ended.append((lane, active))

    def _encode(
        self, lane: int, active: ActiveDispatch, group: Sequence[Part]
    ) -> tuple[list[Part], Batch | None]:
        """Encodes a group as the batch of `active`, in the newest view of the path's tiers if it has tiers.

        Returns the parts in the batch's order and the batch, which is None if nothing is left to execute.
        """
        parts = [p for p in group if not p.query.payload.answer.done()]
        start = clock()
        path = self._paths[active.dispatch.path]
        batch_view = None if path.stack is None else BatchView.enter(path.stack)
        encoder = path.encoder if batch_view is None else batch_view.encoder
        try:
            parts, batch = encode_parts(parts, encoder)
            if batch is not None and batch_view is not None:
                _add_looked_up(batch_view, parts, batch)
                batch = batch_view.attach(batch)
        except Exception as e:
            _leave(batch_view)
            self._retry_or_fail(lane, active, parts, e)
            return parts, None
        if batch is None:
            _leave(batch_view)
            return parts, None
        active.batch_view = batch_view
        active.batch, active.encode_began_s, active.encode_s = batch, start, clock() - start
        return parts, batch

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
            self._retry_or_fail(lane, active, parts, result)
        else:
            active.executed += 1
            active.worker_waited_s += result.waited_s
            try:
                self._scatter(lane, active, parts, result, batch_view)
            except Exception as e:
                log.exception("a batch of lane %s could not be distributed", self._lanes[lane].name)
                self._retry_or_fail(lane, active, parts, e)
        if not active.looping:
            self._execute(lane, active)
            self._deliver()
            self.end_executed()

    def _retry_or_fail(self, lane: int, active: ActiveDispatch, parts: list[Part], error: Exception) -> None:
        """Retries the parts of a failed group one by one, so that a query that breaks a batch fails alone."""
        if len(parts) > 1:
            active.groups.extend([part] for part in parts)
            return
        active.broken.append(parts[0].query)
        log.error("a query failed on lane %s", self._lanes[lane].name, exc_info=error)
        if active.executed or self._defects[lane] + len(active.broken) < DEFECTS_UNTIL_LANE_IS_SUSPECT:
            fail(parts[0].query, failed_prediction())

    def _end(self, lane: int, active: ActiveDispatch) -> None:
        """Frees the lane and reports the dispatch to the router."""
        now_s = clock()
        dispatch = active.dispatch
        self.active[lane] = None
        if active.broken and not active.executed:
            self._defects[lane] += len(active.broken)
            if self._defects[lane] >= DEFECTS_UNTIL_LANE_IS_SUSPECT:
                for query in self._router.failed(dispatch, now_s):
                    fail(query, failed_prediction())
            else:
                self._router.done(dispatch, now_s, dispatch.median_s)
        else:
            self._defects[lane] = 0
            for query in active.broken:
                # another group succeeded, so the queries were at fault, not the lane
                fail(query, failed_prediction())
            # exclude waiting for a CPU, which does not predict later batches and may predate this dispatch
            took_s = active.ended_s - dispatch.started_s - active.loop_waited_s - active.worker_waited_s
            untypical = active.broken or not active.executed or took_s <= 0
            took_s = dispatch.median_s if untypical else took_s
            self._router.done(dispatch, now_s, took_s, active.loop_waited_s)
        self._freed(dispatch)

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
                self._paths[dispatch.path].name,
                rows,
                len(parts),
                StageTimes(active.encode_began_s, active.encode_s, executed.embed_s, executed.dense_s, now_s),
            )
        lost = batch_view if batch_view is not None and batch_view.lost else None
        scatter(dispatch, parts, probabilities, took_s, lost, active.encode_s)
        self.observer.batch_executed(
            ExecutedBatch(
                lane=lane,
                path=dispatch.path,
                batch=batch,
                queries=len(parts),
                encode_s=active.encode_s,
                embed_s=executed.embed_s,
                dense_s=executed.dense_s,
                took_s=took_s,
                encoder=None if batch_view is None else batch_view.encoder,
            )
        )

    def _died(self, lane: int, active: ActiveDispatch) -> None:
        """Requeues the queries of a dead lane if their deadlines allow; the dispatcher restarts the lane."""
        now_s = clock()
        self.active[lane] = None
        self._router.lane_down(lane)
        for query in self._router.failed(active.dispatch, now_s):
            if query.deadline_s <= now_s:
                fail(query, DeadlinePassed(query.deadline_s - query.arrival_s))
            else:
                fail(
                    query, NotReady("the lane that executed the query died, and no other can answer in time")
                )
        self._freed(active.dispatch)


def failed_prediction() -> Defect:
    """Returns the error for a query that failed alone."""
    return Defect("the prediction failed; the server's log has the details")


def _add_looked_up(batch_view: BatchView, parts: Sequence[Part], batch: Batch) -> None:
    """Adds to a batch's view the remote rows that were prefetched for its queries, and which they are."""
    fetched, others = {}, None
    for part in parts:
        looked_up: LookedUpQueries | None = part.query.payload.looked_up
        if looked_up is None or looked_up.stack is not batch_view.stack:
            continue
        if looked_up.batch is batch:
            others = looked_up.others
        if part.query not in looked_up.view_users:
            continue
        # row numbers are only valid in the order in which they were looked up
        if looked_up.fetched is not None and looked_up.view.order == batch_view.entered.order:
            fetched[id(looked_up)] = looked_up.fetched
    if fetched or others is not None:
        batch_view.add(list(fetched.values()), others)


def _leave(batch_view: BatchView | None) -> None:
    if batch_view is not None:
        batch_view.leave()
