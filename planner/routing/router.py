"""The router: which query is taken or refused, which batch a free lane executes, what is out of time.

Queries and the news of lanes go in, dispatches come out. Pure: the clock is passed in, nothing is awaited,
so the live server and the simulator run this same object. What to choose is the policy's affair; here
is what holds for every policy: the queue, splitting and joining, deadlines, lanes that break,
stall, slow down or come back.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyrec.planner.plan import Routing
from polyrec.planner.routing import explain as explaining
from polyrec.planner.routing.admission.attempt import worth_accepting
from polyrec.planner.routing.admission.reading_round import Reading
from polyrec.planner.routing.decision import decide
from polyrec.planner.routing.dispatching import take
from polyrec.planner.routing.explanation import Explanation, RouterState
from polyrec.planner.routing.lanes import probing
from polyrec.planner.routing.lanes.breaker import CLOSED, OPEN, BreakerState
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.latency.front_cost import Spent
from polyrec.planner.routing.policies.registry import make_policy
from polyrec.planner.routing.query import Dispatch, Part, Query, Refusal, Refused
from polyrec.planner.routing.router_state import Board

MOST_RETRIES = 2
"""A query that broke that many lanes is given back: it may be what breaks them."""
SHARE_MEMORY_S = 2.0
USUAL_WEIGHT = 0.1
"""Of the last batch in the mean of a lane's batches."""
INF = float("inf")


FEWER = 0.8
"""A query is turned away unread if it would be with that share of the rows that it seems to have."""
PATIENCE = 0.25
"""Share of its budget that a query may have spent and still wait for what the loop reads next."""


class Router:
    """One server's decisions. paths, lanes: as given; Query.path, Dispatch.path, Dispatch.lane index them."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.paths, self.lanes = board.specs
        self.policy = make_policy(board.routing, board)
        self.policy.prepare(board)
        self._ticked_s = board.begun_s
        self._reading = Reading()
        self.asking = list(range(len(self.lanes)))
        """The order in which free lanes ask: those on probation first, or the others leave them nothing."""

    def reject_early(self, arrival_s: float, deadline_s: float, size: float, now_s: float) -> Refused | None:
        """Why a query need not even be parsed; None: offer it. Past capacity, goodput is what refusals leave.

        It is too late, or no smaller, with no more time, than one that this round has refused; or it would be
        refused even if it had fewer rows than that one has for its size. size: whatever grows with a query's
        rows, as told to `offer`. For queries without priority that take any quality.
        """
        reading = self._reading
        if deadline_s <= now_s:
            self.board.observed.arrived(reading.rows, deadline_s - arrival_s)
            return Refused(Refusal.EXPIRED, 0.0, self.board.queue.rows)
        refused = reading.refused
        board = self.board
        if refused is None or not board.queue.pieces:
            return None
        if not reading.refuses(size, deadline_s):
            likely = reading.rows_of(size)
            if likely == INF:
                return None
            query = Query(max(1, int(FEWER * likely)), arrival_s, deadline_s)
            over_s = reading.over_s(arrival_s, now_s, board.front.busy)
            late_s = self.policy.admit(board, query, over_s)
            if late_s <= 0:
                return None
            refused = Refused(Refusal.OVERLOAD, late_s, board.queue.rows)
            reading.refuse(refused, size, deadline_s, max(1, round(likely)))
        board.observed.arrived(reading.rows, deadline_s - arrival_s)
        board.caution.lost()
        return refused

    def offer(self, query: Query, now_s: float, size: float = INF) -> Refused | None:
        """Takes a query into the queue, or says why not and when it would fit.

        What is offered before the next `expire` is read in one round of the owner's loop (reading.py).
        """
        board = self.board
        arrival_s, deadline_s = query.arrival_s, query.deadline_s
        over_s = self._reading.over_s(arrival_s, now_s, board.front.busy)
        queue = board.queue
        rows = query.rows
        board.observed.arrived(rows, deadline_s - arrival_s)
        if not board.usable:
            return Refused(Refusal.UNAVAILABLE, 1.0, queue.rows)
        over = queue.over(rows, query.priority > 0, board.max_queued_rows)
        if over > 0:
            return Refused(Refusal.OVERLOAD, over / board.total_rate, queue.rows)
        if deadline_s <= now_s:
            return Refused(Refusal.EXPIRED, 0.0, queue.rows)
        policy = self.policy
        late_s = policy.admit(board, query, over_s)
        if late_s > 0 and not worth_accepting(board, query, over_s):
            board.caution.lost()
            refused = Refused(Refusal.OVERLOAD, late_s, queue.rows)
            if not (query.priority or query.required):
                # others are not judged by one that asks for more than they do
                self._reading.refuse(refused, size, deadline_s, rows)
            return refused
        if policy.binds:
            policy.accepted(board, query, over_s)
        queue.push(query, 0, rows, arrival_s if policy.fifo else deadline_s)
        return None

    def pressing(self, now_s: float) -> bool:
        """Whether what is first in the queue has spent so much of its budget that it waits for no company."""
        pieces = self.board.queue.pieces
        if not pieces:
            return False
        head = pieces[0][3]
        return now_s - head.arrival_s > PATIENCE * (head.deadline_s - head.arrival_s)

    def next(self, lane: int, now_s: float) -> Dispatch | None:
        """What a free lane executes now; recorded as in flight. None: nothing, or better on another lane."""
        board = self.board
        state = board.lanes[lane]
        state.again_s = INF
        if state.flight is not None or not state.alive or not board.queue.pieces:
            return None
        choice, probe = decide(board, self.policy, state, now_s)
        if choice is None:
            return None
        if probe:
            if state.breaker.state is OPEN:
                state.breaker.state = BreakerState.PROBING
            else:
                state.heard_s = now_s
            # On a copy if other lanes are there: the query stays in the queue for them.
            probe = bool(probing.others(board, state))
        if not probe and self.policy.binds:
            self.policy.dispatched(board, choice[0], choice[3])
        return take(board, state, choice, now_s, probe)

    def done(self, dispatch: Dispatch, now_s: float, took_s: float) -> None:
        """A batch was executed: corrects what is known of its lane, completes its queries.

        Of a lost dispatch or a probe, only queries that are in it whole and not yet settled are completed.
        """
        board = self.board
        lane = board.lanes[dispatch.lane]
        if lane.flight is dispatch:
            lane.free(now_s)
        path, rows = dispatch.path, dispatch.rows
        curve = board.paths[path].curve
        lane.heard_s = now_s
        lane.busy_s += took_s
        lane.usual += USUAL_WEIGHT * (rows - lane.usual)
        lane.correction.observe(path, rows, took_s)
        breaker = lane.breaker
        if breaker.state is not CLOSED:
            if dispatch.lost:
                breaker.again_s = min(breaker.again_s, now_s)
            elif breaker.state is BreakerState.PROBING or not breaker.broken:
                others = [other.correction.factor for other in probing.others(board, lane)]
                breaker.probed(took_s, curve.tail[rows] * max(1.0, min(others, default=INF)), now_s)
                if others and not breaker.open:
                    lane.correction.reset()
                self._lanes_changed()
        queue = board.queue
        whole_only = dispatch.lost or dispatch.probe
        learner = self.policy if self.policy.learns else None
        for part in dispatch.parts:
            query = part.query
            if whole_only:
                if not query.settled and part.rows == query.rows and not query.done_rows:
                    query.settled = True
                    query.done_rows = query.rows
                    query.path, query.reason = path, dispatch.reason
                    if learner is not None:
                        learner.finished(query, now_s)
            else:
                query.done_rows += part.rows
                if query.done_rows >= query.rows:
                    query.settled = True
                    if query.deadline_s < now_s:
                        board.caution.lost()
                    if learner is not None:
                        learner.finished(query, now_s)
            if query.settled and query.taken_rows < query.rows:
                queue.forget(query)

    def failed(self, dispatch: Dispatch, now_s: float) -> list[Query]:
        """Execution broke or the lane died: queries that another lane can still make are queued again.

        Returns the others, settled: their owner answers them.
        """
        lane = self.board.lanes[dispatch.lane]
        parts = dispatch.parts
        if dispatch.lost:
            parts = lane.stranded
        if lane.flight is dispatch:
            lane.free(now_s)
        was_lost, dispatch.lost = dispatch.lost, True
        if not was_lost:
            lane.breaker.trip(now_s, broken=True)
            self._lanes_changed()
        if dispatch.probe:
            return []
        out = []
        for part in self._again(parts, now_s, failed=True):
            query = part.query
            if not query.settled:
                self._settle(query)
                out.append(query)
        return out

    def expire(self, now_s: float) -> list[Query]:
        """Queries, waiting or executing, whose deadline has passed or cannot be met any more; settled.

        Lanes that should have finished long ago count as stalled from here on.
        """
        if self._reading.going_on:
            self._reading.end()
        board = self.board
        out: list[Query] = []
        if board.queue.earliest_s - board.least_s <= now_s:
            out = board.queue.sweep(now_s, board.least_s)
        for lane in board.lanes:
            if lane.due_s > now_s and lane.overdue_s > now_s:
                continue  # as of every lane that is free
            flight = lane.flight
            if flight is None:
                continue
            if lane.overdue_s <= now_s:
                self._stall(lane, flight, now_s)
            if lane.due_s <= now_s:
                lane.due_s = INF
                for part in flight.parts:
                    query = part.query
                    if query.settled:
                        continue
                    if query.deadline_s <= now_s:
                        self._settle(query)
                        out.append(query)
                    elif query.deadline_s < lane.due_s:
                        lane.due_s = query.deadline_s
        if out:
            board.caution.lost()
            if self.policy.learns:
                for query in out:
                    self.policy.finished(query, now_s)
        return out

    def wake_s(self) -> float | None:
        """When `expire` and `next` should be called again if nothing happens before; None: no need."""
        board = self.board
        at = board.queue.earliest_s - board.least_s if board.queue.pieces else INF
        for lane in board.lanes:
            if lane.flight is not None:
                if lane.due_s < at:
                    at = lane.due_s
                if lane.overdue_s < at:
                    at = lane.overdue_s
            elif lane.again_s < at:
                at = lane.again_s
            elif lane.breaker.state is OPEN and lane.alive and board.queue.pieces:
                at = min(at, lane.breaker.again_s)
        return at if at < INF else None

    def cancel(self, query: Query) -> None:
        """The client left: the query is out at once, its rows count no more."""
        if not query.settled:
            self._settle(query)

    def lane_down(self, lane: int, now_s: float) -> None:
        """A lane died. What it executed comes by `failed`."""
        state = self.board.lanes[lane]
        state.alive = False
        self._lanes_changed()

    def lane_up(self, lane: int, now_s: float) -> None:
        """A lane was started again: it gets a probe first."""
        state = self.board.lanes[lane]
        state.alive = True
        state.correction.reset(anew=True)
        state.breaker.state = BreakerState.OPEN
        state.breaker.broken = False
        state.breaker.again_s = now_s
        self._lanes_changed()

    def tick(self, now_s: float, spent: Spent | None = None) -> None:
        """The control loop, about ten times a second: rates, sizes, corrections, prices.

        spent: by the owner's loop since the last tick beside lanes, if that is known.
        """
        board = self.board
        observed = board.observed
        if spent is not None:
            board.front.observe(spent, observed.new_queries, observed.mean_rows)
        observed.tick(now_s)
        board.caution.tick()
        board.front.load(observed.queries_s, observed.mean_rows)
        passed = now_s - self._ticked_s
        if passed > 0:
            weight = min(1.0, passed / SHARE_MEMORY_S)
            for lane in board.lanes:
                lane.used += weight * (min(1.0, lane.busy_s / passed) - lane.used)
                lane.correction.tick(now_s, passed, max(1, round(lane.usual)))
                lane.busy_s = 0.0
            for path in board.paths:
                path.rows *= 1.0 - weight
            self._ticked_s = now_s
        self.policy.prepare(board)

    def explain(self, rows: int, budget_s: float, now_s: float, required: bool = False) -> Explanation:
        """What would be chosen now for a query of `rows` rows, and why. Changes nothing."""
        return explaining.explain(self.board, self.policy, rows, budget_s, now_s, required)

    def state(self, now_s: float) -> RouterState:
        """Everything as numbers."""
        return explaining.state(self.board, self.policy, now_s)

    def set_policy(self, routing: Routing, now_s: float) -> None:
        """Another policy, other weights, at run time; what waits is routed by the new one."""
        board = self.board
        board.set_routing(routing)
        self.policy = make_policy(routing, board)
        waiting = list(board.queue.unsettled())
        board.queue.clear()
        for _, _, _, query, first, rows in waiting:
            if rows == query.rows:
                query.path = -1
            board.queue.push(query, first, rows, query.arrival_s if self.policy.fifo else query.deadline_s)
        self.policy.prepare(board)

    def _stall(self, lane: LaneState, flight: Dispatch, now_s: float) -> None:
        """A batch takes far too long: the lane is out, its queries go elsewhere if they can."""
        lane.overdue_s = INF
        flight.lost = True
        lane.breaker.trip(now_s)
        lane.breaker.again_s = INF  # until the batch returns
        self._lanes_changed()
        if not flight.probe:
            lane.stranded = self._again(flight.parts, now_s)

    def _again(self, parts: Sequence[Part], now_s: float, failed: bool = False) -> list[Part]:
        """Queues parts again for other lanes; returns those that none can make in time.

        failed: their lane died or broke, and did not only take too long.
        """
        board = self.board
        left: list[Part] = []
        for part in parts:
            query = part.query
            if query.settled:
                continue
            in_time = any(lane.usable for lane in board.usable) and (
                now_s + board.own_s(part.rows, board.queue.rows) + board.front_s(query) <= query.deadline_s
            )
            if query.retries >= MOST_RETRIES or not in_time:
                left.append(part)
                continue
            query.retries += 1
            query.failed |= failed
            query.taken_rows -= part.rows
            order = query.arrival_s if self.policy.fifo else query.deadline_s
            board.queue.push(query, part.first, part.rows, order)
        self._lanes_changed()
        return left

    def _settle(self, query: Query) -> None:
        query.settled = True
        if query.taken_rows < query.rows:
            self.board.queue.forget(query)

    def _lanes_changed(self) -> None:
        self.policy.prepare(self.board)
        self.asking.sort(key=lambda i: (self.board.lanes[i].usable, i))
