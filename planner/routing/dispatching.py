"""Taking: a choice becomes a batch on its lane.

What was chosen leaves the queue (unless it is a probe), its queries know their path, and the lane knows what
it executes, when that should be over, and when it must not go on any longer.
"""

from __future__ import annotations

from polyrec.planner.routing.fair_share import charge
from polyrec.planner.routing.lanes.breaker import overdue_at_s
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.query import Dispatch, Part
from polyrec.planner.routing.queue import Piece, Queue
from polyrec.planner.routing.router_state import Board

INF = float("inf")


def take(board: Board, lane: LaneState, choice: Choice, now_s: float, probe: bool = False) -> Dispatch:
    """The dispatch of a choice, recorded as in flight."""
    path, pieces, start, rows, reason = choice
    state = board.paths[path]
    head = pieces[0]
    if len(pieces) == 1:
        parts = [Part(head[3], head[4], rows)]
    else:
        parts = [Part(piece[3], piece[4], piece[5]) for piece in pieces]
    correction = lane.correction
    median_s = state.curve.median[rows] * correction.median[path]
    tail_s = state.curve.tail[rows] * correction.tail[path]
    due_s = INF
    if not probe:
        queue = board.queue
        for part in parts:
            query = part.query
            query.taken_rows += part.rows
            if query.priority:
                queue.privileged -= part.rows
            query.path = path
            query.reason = reason
            if query.deadline_s < due_s:
                due_s = query.deadline_s
        queue.rows -= rows
        if start >= 0 and rows >= head[5]:
            del queue.pieces[start : start + len(pieces)]
        else:
            _leave(queue, pieces, rows)
        charge(queue, head[0], median_s)
    dispatch = Dispatch(lane.index, path, parts, rows, reason, now_s, median_s, tail_s, False, probe)
    lane.flight = dispatch
    lane.free_s = free_s = now_s + median_s
    if free_s > board.ends_s:
        board.ends_s = free_s
    lane.due_s = due_s
    lane.overdue_s = INF if lane.inline else overdue_at_s(now_s, tail_s, due_s - 2 * tail_s)
    state.rows += rows
    return dispatch


def _leave(queue: Queue, taken: list[Piece], rows: int) -> None:
    """What is scattered over the queue leaves it; of a piece that is split the rest stays in its place."""
    pieces = queue.pieces
    if len(taken) == 1:
        level, order, number, query, first, waiting = piece = taken[0]
        at = pieces.index(piece)
        if rows < waiting:
            pieces[at] = (level, order, number, query, first + rows, waiting - rows)
        else:
            del pieces[at]
    else:
        gone = {piece[2] for piece in taken}
        pieces[:] = [piece for piece in pieces if piece[2] not in gone]
