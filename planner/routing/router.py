"""The router: admission control, dispatch to free lanes, expiry, and recovery from failing lanes.

server/dispatch and the simulator run the same router, as it is pure: callers pass the time, and nothing
blocks. They submit queries and report lane events; the router returns dispatches, rejections and expired
queries. A policy (policies/) chooses paths. The router does what all policies share: the queue, splitting of
queries, deadlines, and lanes that fail, stall, slow down or come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyrec.planner.plan import Routing
from polyrec.planner.routing.admission import losses
from polyrec.planner.routing.admission.attempt import record_arrival
from polyrec.planner.routing.admission.reading_round import ReadingRound
from polyrec.planner.routing.admission.rejection import rejection
from polyrec.planner.routing.decision import decide, other_usable_lanes
from polyrec.planner.routing.dispatching import complete, dispatch_batch, expire_executing
from polyrec.planner.routing.explain import Explanation, RouterSnapshot, explain, snapshot
from polyrec.planner.routing.holding import hold, mark_ready, queue_ready
from polyrec.planner.routing.lanes.breaker import CLOSED, OPEN, BreakerState
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.latency.front_cost import LoopTime
from polyrec.planner.routing.latency.read_times import ReadSeconds
from polyrec.planner.routing.policies.registry import make_policy
from polyrec.planner.routing.query import Dispatch, Misses, Part, Query, Rejection, RejectReason
from polyrec.planner.routing.router_state import RouterState

MAX_RETRIES = 2
"""Failed batches after which a query is given up, as it may be what breaks the lanes."""
SHARE_MEMORY_S = 2.0
"""Time constant of lanes' recent utilization and of paths' recent rows."""
BATCH_ROWS_WEIGHT = 0.1
"""EWMA weight of the newest batch size."""
INF = float("inf")
STALLED_S = 5.0
"""Age of the batches of all lanes from which the lanes count as unable to answer; machines pause for less."""
URGENT_SHARE = 0.25
"""Share of its budget after which a query is dispatched without waiting for more arrivals."""


class Router:
    """Makes the routing decisions of one model.

    Query.path and Dispatch.path are indexes of the state's paths, Dispatch.lane is an index of its lanes.
    """

    def __init__(self, state: RouterState) -> None:
        self.state = state
        self.policy = make_policy(state.routing, state)
        self.policy.prepare(state)
        state.queue.fifo = self.policy.fifo
        self._ticked_s = state.start_s
        self._round = ReadingRound()
        self.lane_order = list(range(len(state.lanes)))
        """Lane indexes in the order in which free lanes get work; lanes to be probed come first, as otherwise
        no work would be left for them."""

    @property
    def overloaded(self) -> bool:
        """Whether this reading round has rejected a query, so that `reject_early` may reject others."""
        return self._round.overloaded

    def reject_early(
        self, arrival_s: float, deadline_s: float, rows: int | None, now_s: float
    ) -> Rejection | None:
        """Rejects a query before it is parsed if `submit` would reject it; None means parse and submit it.

        Above capacity, goodput depends on the time of the core that rejections leave. A query is rejected if
        its deadline has passed, or if the reading round is overloaded and the query would be late. Only for
        queries without priority or required quality. A query's own rows and deadline decide. That others
        were rejected in this round only makes it worth the time to count its rows.

        rows: None if unknown.
        """
        state = self.state
        if deadline_s <= now_s:
            rows = round(state.observed.mean_rows) if rows is None else rows
            record_arrival(state, rows, deadline_s - arrival_s)
            return Rejection(RejectReason.EXPIRED, 0.0, state.queue.rows)
        if rows is None or not self._round.overloaded:
            return None
        end_s = self._round.expected_end_s(arrival_s, now_s, state.front.read_share)
        rejected = rejection(state, self.policy, Query(rows, arrival_s, deadline_s), end_s, now_s)
        if rejected is not None:
            record_arrival(state, rows, deadline_s - arrival_s)
            if rejected.reason is RejectReason.OVERLOAD:
                losses.record_loss(state, rows, deadline_s - arrival_s, rejected.retry_after_s)
        return rejected

    def submit(self, query: Query, now_s: float) -> Rejection | None:
        """Queues a query, or rejects it.

        Queries submitted before the next `expire` belong to one reading round of the caller's event loop
        (reading_round.py).
        """
        state = self.state
        arrival_s, deadline_s, rows = query.arrival_s, query.deadline_s, query.rows
        end_s = self._round.expected_end_s(arrival_s, now_s, state.front.read_share)
        possible = record_arrival(state, rows, deadline_s - arrival_s, query.best_only)
        rejected = rejection(state, self.policy, query, end_s, now_s)
        if rejected is None:
            if self.policy.binds_at_arrival:
                self.policy.accepted(state, query, end_s)
            state.queue.push(query, 0, rows)
        elif rejected.reason is RejectReason.OVERLOAD:
            excess_s = rejected.retry_after_s
            losses.record_loss(state, rows, deadline_s - arrival_s, excess_s, query.best_only)
            if possible and not (query.priority or query.best_only):
                # one that asks for more than others, or for what none gets, says nothing about them
                self._round.overloaded = True
        return rejected

    def hold(self, query: Query, misses: Misses, now_s: float) -> Rejection | None:
        """Holds a submitted query, of which no rows were dispatched, while its missing rows are read."""
        return hold(self.state, query, misses, now_s)

    def set_aside(self, query: Query) -> None:
        """Takes a query, of which no rows were dispatched, out of the queue until `put_back`."""
        self.state.queue.take(query)

    def put_back(self, query: Query) -> None:
        """Queues a query again that was set aside."""
        self.state.queue.push(query, 0, query.rows)

    def rows_read(self, query: Query, took_s: ReadSeconds) -> None:
        """Records that a query's missing rows have been read, which makes it ready."""
        query.reading = False
        self.state.reads.observe(query.misses, took_s)
        mark_ready(self.state, query)

    def is_urgent(self, now_s: float) -> bool:
        """Whether the head of the queue has spent too much of its budget to wait for more arrivals."""
        pieces = self.state.queue.pieces
        if not pieces:
            return False
        head = pieces[0].query
        return now_s - head.arrival_s > URGENT_SHARE * (head.deadline_s - head.arrival_s)

    def next(self, lane: int, now_s: float) -> Dispatch | None:
        """Dispatches a batch to a free lane; None if nothing waits or another lane is better suited."""
        state = self.state
        lane_state = state.lanes[lane]
        lane_state.recheck_s = INF
        if lane_state.in_flight is not None or not lane_state.alive:
            return None
        if not (state.queue.pieces or queue_ready(state)):
            return None
        choice, is_probe = decide(state, self.policy, lane_state, now_s)
        if choice is None:
            return None
        if is_probe:
            if lane_state.breaker.state is OPEN:
                lane_state.breaker.state = BreakerState.PROBING
            else:
                lane_state.last_done_s = now_s
        # if there are other lanes, the query stays in the queue for them and the probe executes a copy
        is_copy = is_probe and bool(other_usable_lanes(state, lane_state))
        if not is_copy and self.policy.binds_at_arrival:
            self.policy.dispatched(state, choice.path, choice.rows)
        return dispatch_batch(state, lane_state, choice, now_s, is_copy)

    def done(self, dispatch: Dispatch, now_s: float, took_s: float, waited_s: float = 0.0) -> None:
        """Records an executed batch, corrects the lane's latency model and completes queries.

        A lost dispatch or a probe completes only unsettled queries that it contains as a whole, or parts that
        no other lane could execute in time.

        took_s: service time.
        waited_s: seconds beside it in which an inline lane waited for a CPU that other programs used. They
            tell nothing about the path's next batch, but how much of the lane's time there is.
        """
        state = self.state
        lane = state.lanes[dispatch.lane]
        stranded = lane.stranded
        if lane.in_flight is dispatch:
            lane.release(now_s)
        path, rows = dispatch.path, dispatch.rows
        latency = state.paths[path].latency
        lane.last_done_s = now_s
        lane.busy_s += took_s
        lane.waited_s += waited_s
        lane.mean_batch_rows += BATCH_ROWS_WEIGHT * (rows - lane.mean_batch_rows)
        if not dispatch.waits:
            lane.correction.observe(path, rows, took_s)
        breaker = lane.breaker
        if breaker.state is not CLOSED:
            if dispatch.lost:
                breaker.retry_s = min(breaker.retry_s, now_s)
            elif breaker.state is BreakerState.PROBING or not breaker.broken:
                factors = [other.correction.factor for other in other_usable_lanes(state, lane)]
                breaker.probed(took_s, latency.tail[rows] * max(1.0, min(factors, default=INF)), now_s)
                if factors and not breaker.open:
                    lane.correction.reset()
                self._update_lanes()
        complete(state, dispatch, stranded, now_s, self.policy if self.policy.learns else None)

    def failed(self, dispatch: Dispatch, now_s: float) -> list[Query]:
        """Records a failed batch, and requeues the queries that another lane can execute in time.

        Settles and returns the others, which the caller must answer.
        """
        lane = self.state.lanes[dispatch.lane]
        parts = dispatch.parts
        if dispatch.lost:
            parts = lane.stranded
        if lane.in_flight is dispatch:
            lane.release(now_s)
        was_lost, dispatch.lost = dispatch.lost, True
        if not was_lost:
            lane.breaker.trip(now_s, broken=True)
            self._update_lanes()
        if dispatch.probe:
            return []
        given_up = []
        for part in self._requeue(parts, now_s, failed=True):
            query = part.query
            if not query.settled:
                self.state.queue.settle(query)
                given_up.append(query)
        return given_up

    def expire(self, now_s: float) -> list[Query]:
        """Settles and returns queries whose deadline passed or can no longer be met.

        Also ends the reading round, and opens the breakers of stalled lanes.
        """
        if self._round.active:
            self._round.end()
        state = self.state
        expired: list[Query] = []
        if state.queue.release_s <= now_s:
            for query in state.queue.release_due(now_s):
                state.queue.push(query, 0, query.rows)
        if state.queue.earliest_s - state.min_latency_s <= now_s:
            expired = state.queue.sweep(now_s, state.min_latency_s)
        for lane in state.lanes:
            if lane.due_s > now_s and lane.overdue_s > now_s:
                continue  # includes free lanes
            dispatch = lane.in_flight
            if dispatch is None:
                continue
            if lane.overdue_s <= now_s:
                self._abandon(lane, dispatch, now_s)
            if lane.due_s <= now_s:
                expired += expire_executing(state, lane, dispatch, now_s)
        for query in expired:
            losses.record_expired(state, query)
            if self.policy.learns:
                self.policy.finished(query, now_s)
        return expired

    def all_stalled(self, now_s: float) -> bool:
        """Whether every usable lane has an abandoned batch that is at least STALLED_S old."""
        return all(lane.stalled_s(now_s) >= STALLED_S for lane in self.state.usable)

    def wake_s(self) -> float | None:
        """Returns when to call `expire` and `next` if no event comes first; None for never."""
        state = self.state
        queue = state.queue
        at = queue.earliest_s - state.min_latency_s if queue.pieces or queue.held else INF
        if queue.release_s < at:
            at = queue.release_s
        for lane in state.lanes:
            if lane.in_flight is not None:
                if lane.due_s < at:
                    at = lane.due_s
                if lane.overdue_s < at:
                    at = lane.overdue_s
            elif lane.recheck_s < at:
                at = lane.recheck_s
            elif lane.breaker.state is OPEN and lane.alive and queue.pieces:
                at = min(at, lane.breaker.retry_s)
        return at if at < INF else None

    def cancel(self, query: Query) -> None:
        """Drops a query whose client has left."""
        if not query.settled:
            self.state.queue.settle(query)

    def lane_down(self, lane: int) -> None:
        """Records that a lane died. The caller must pass the lane's batch to `failed`."""
        self.state.lanes[lane].alive = False
        self._update_lanes()

    def lane_up(self, lane: int, now_s: float) -> None:
        """Records that a lane was restarted; it will be probed first."""
        lane_state = self.state.lanes[lane]
        lane_state.alive = True
        lane_state.correction.reset(anew=True)
        lane_state.breaker.state = BreakerState.OPEN
        lane_state.breaker.broken = False
        lane_state.breaker.retry_s = now_s
        self._update_lanes()

    def tick(self, now_s: float, loop_time: LoopTime | None = None) -> None:
        """Updates rates, corrections and prices. Call it about ten times a second.

        loop_time: CPU time of the caller's event loop since the last tick, if measured.
        """
        state = self.state
        observed = state.observed
        if loop_time is not None:
            state.front.observe(loop_time, observed.new_queries, observed.mean_rows)
        observed.tick(now_s)
        state.front.update_read_share(observed.queries_s, observed.mean_rows)
        passed_s = now_s - self._ticked_s
        losses.tick(state, passed_s)
        state.reads.tick(passed_s)
        if passed_s > 0:
            weight = min(1.0, passed_s / SHARE_MEMORY_S)
            for lane in state.lanes:
                lane.tick(now_s, passed_s, weight)
            for path in state.paths:
                path.rows *= 1.0 - weight
            self._ticked_s = now_s
        self.policy.prepare(state)

    def explain(self, rows: int, budget_s: float, now_s: float, best_only: bool = False) -> Explanation:
        """Explains which path a query of `rows` rows would get now. Changes nothing."""
        return explain(self.state, self.policy, rows, budget_s, now_s, best_only)

    def snapshot(self) -> RouterSnapshot:
        """Returns the state as plain numbers."""
        return snapshot(self.state, self.policy)

    def set_policy(self, routing: Routing) -> None:
        """Changes policy and weights; waiting queries are routed by the new policy."""
        state = self.state
        state.loss_backoff.reset()
        state.set_routing(routing)
        self.policy = make_policy(routing, state)
        waiting = list(state.queue.unsettled())
        state.queue.clear()
        state.queue.fifo = self.policy.fifo
        for piece in waiting:
            query = piece.query
            if piece.rows == query.rows:
                query.path = -1
            state.queue.push(query, piece.first, piece.rows)
        self.policy.prepare(state)

    def set_base_values(self, values: Mapping[str, float]) -> None:
        """Changes the value of an answered row on each path, before weights. values: by path name."""
        state = self.state
        for path in state.paths:
            path.base_value = values[path.name]
        state.set_routing(state.routing)
        self.policy.prepare(state)

    def _abandon(self, lane: LaneState, dispatch: Dispatch, now_s: float) -> None:
        """Opens the breaker of a stalled lane, and requeues parts that other lanes can execute in time."""
        lane.overdue_s = INF
        dispatch.lost = True
        lane.breaker.trip(now_s)
        lane.breaker.retry_s = INF  # until the batch returns
        self._update_lanes()
        if not dispatch.probe:
            lane.stranded = self._requeue(dispatch.parts, now_s)

    def _requeue(self, parts: Sequence[Part], now_s: float, failed: bool = False) -> list[Part]:
        """Requeues parts for other lanes; returns those that none can execute in time.

        failed: whether their lane died or failed, rather than stalled.
        """
        state = self.state
        left: list[Part] = []
        for part in parts:
            query = part.query
            if query.settled:
                continue
            needed_s = state.service_time_s(part.rows, state.queue.rows) + state.front.answering_s(query.rows)
            is_in_time = now_s + needed_s <= query.deadline_s and any(lane.usable for lane in state.usable)
            if query.retries >= MAX_RETRIES or not is_in_time:
                left.append(part)
                continue
            query.retries += 1
            query.failed |= failed
            query.dispatched_rows -= part.rows
            state.queue.push(query, part.first, part.rows)
        self._update_lanes()
        return left

    def _update_lanes(self) -> None:
        self.policy.prepare(self.state)
        self.lane_order.sort(key=lambda i: (self.state.lanes[i].usable, i))
