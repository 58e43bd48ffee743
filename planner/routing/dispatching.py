"""Dispatching: turns a choice into a running batch on its lane, and completes or expires its queries.

`dispatch_batch` removes the chosen pieces from the queue (unless it is a probe), sets the path of their
queries, and records on the lane what it executes, when that should complete and when it counts as stalled.
Used by router.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyrec.planner.routing.admission.losses import record_loss
from polyrec.planner.routing.fair_share import charge
from polyrec.planner.routing.lanes.breaker import overdue_at_s
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice, Policy
from polyrec.planner.routing.query import Dispatch, Part, Query
from polyrec.planner.routing.queue import Piece, Queue
from polyrec.planner.routing.router_state import RouterState

INF = float("inf")


def dispatch_batch(
    state: RouterState, lane: LaneState, choice: BatchChoice, now_s: float, is_copy: bool = False
) -> Dispatch:
    """Starts a batch: updates the queue, the queries and the lane, and returns the dispatch.

    is_copy: whether this is a probe whose query also stays in the queue.
    """
    path, pieces, _, rows, reason = choice
    path_state = state.paths[path]
    head = pieces[0]
    if len(pieces) == 1:
        parts = [Part(head.query, head.first, rows)]
    else:
        parts = [Part(piece.query, piece.first, piece.rows) for piece in pieces]
    correction = lane.correction
    median_s = path_state.latency.median[rows] * correction.median[path]
    tail_s = path_state.latency.tail[rows] * correction.tail[path]
    waits = head.query.reading
    if waits:
        # queries that wait for rows are merged only with each other
        reads_s = max(state.reads.tail_s(piece.query.misses) for piece in pieces)
        median_s, tail_s = median_s + reads_s, tail_s + reads_s
    due_s = INF
    if not is_copy:
        due_s = min(part.query.deadline_s for part in parts)
        _take(state.queue, choice, parts)
        charge(state.queue, head.level, median_s)
    dispatch = Dispatch(lane.index, path, parts, rows, reason, now_s, median_s, tail_s, False, is_copy, waits)
    lane.in_flight = dispatch
    lane.free_s = now_s + median_s
    lane.due_s = due_s
    lane.overdue_s = INF if lane.inline else overdue_at_s(now_s, tail_s, due_s - 2 * tail_s)
    path_state.rows += rows
    return dispatch


def complete(
    state: RouterState, dispatch: Dispatch, stranded: Sequence[Part], now_s: float, learner: Policy | None
) -> None:
    """Completes the queries of an executed batch. A lost batch or a probe only completes unsplit queries.

    stranded: parts of a lost batch that were not queued again, so that no other batch has them.
    learner: the policy if it wants to know about finished queries.
    """
    is_copy = dispatch.lost or dispatch.probe
    for part in dispatch.parts:
        query = part.query
        if is_copy and part not in stranded:
            completes = not query.recorded and part.rows == query.rows and not query.done_rows
            if completes:
                query.done_rows = query.rows
                query.path, query.reason = dispatch.path, dispatch.reason
        else:
            query.done_rows += part.rows
            completes = query.done_rows >= query.rows and not query.recorded
            if completes and query.deadline_s < now_s:
                budget_s = query.deadline_s - query.arrival_s
                record_loss(state, query.rows, budget_s, now_s - query.deadline_s, query.best_only)
        if completes:
            query.settled = query.recorded = True
            if learner is not None:
                learner.finished(query, now_s)
        if query.settled and query.dispatched_rows < query.rows:
            state.queue.discount(query)


def expire_executing(state: RouterState, lane: LaneState, dispatch: Dispatch, now_s: float) -> list[Query]:
    """Settles and returns a running batch's expired queries, and updates the lane's first deadline."""
    expired = []
    lane.due_s = INF
    for part in dispatch.parts:
        query = part.query
        if query.settled:
            continue
        if query.deadline_s <= now_s:
            state.queue.settle(query)
            expired.append(query)
        elif query.deadline_s < lane.due_s:
            lane.due_s = query.deadline_s
    return expired


def _take(queue: Queue, choice: BatchChoice, parts: Sequence[Part]) -> None:
    """Removes the chosen pieces from the queue and sets the path of their queries."""
    path, pieces, start, rows, reason = choice
    for part in parts:
        query = part.query
        query.dispatched_rows += part.rows
        if query.priority:
            queue.privileged_rows -= part.rows
        query.path = path
        query.reason = reason
    queue.rows -= rows
    if start >= 0 and rows >= pieces[0].rows:
        del queue.pieces[start : start + len(pieces)]
    else:
        _remove(queue, pieces, rows)


def _remove(queue: Queue, dispatched: list[Piece], rows: int) -> None:
    """Removes pieces scattered over the queue; the remainder of a single split piece keeps its place."""
    pieces = queue.pieces
    if len(dispatched) == 1:
        piece = dispatched[0]
        at = pieces.index(piece)
        if rows < piece.rows:
            pieces[at] = piece._replace(first=piece.first + rows, rows=piece.rows - rows)
        else:
            del pieces[at]
    else:
        numbers = {piece.number for piece in dispatched}
        pieces[:] = [piece for piece in pieces if piece.number not in numbers]
