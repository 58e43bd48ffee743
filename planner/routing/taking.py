"""Taking: a choice becomes a batch on its lane.

What was chosen leaves the queue (unless it is a probe), its queries know their path, and the lane knows what
it executes, when that should be over, and when it must not go on any longer.
"""

from __future__ import annotations

from planner.routing.board import Board
from planner.routing.breaker import overdue_at_s
from planner.routing.lane import LaneState
from planner.routing.policy import Choice
from planner.routing.query import Dispatch, Part

INF = float("inf")


def take(board: Board, lane: LaneState, choice: Choice, now_s: float, probe: bool = False) -> Dispatch:
    """The dispatch of a choice, recorded as in flight."""
    path = choice.path
    rows = choice.rows
    state = board.paths[path]
    parts = _parts(choice)
    due = INF
    if not probe:
        for part in parts:
            query = part.query
            query.taken_rows += part.rows
            query.path = path
            query.reason = choice.reason
            if query.deadline_s < due:
                due = query.deadline_s
        _leave(board, choice)
    correction = lane.correction
    median_s = state.curve.median[rows] * correction.median[path]
    tail_s = state.curve.tail[rows] * correction.tail[path]
    dispatch = Dispatch(lane.index, path, parts, rows, choice.reason, now_s, median_s, tail_s, False, probe)
    lane.flight = dispatch
    lane.free_s = now_s + median_s
    lane.due_s = due
    lane.overdue_s = INF if lane.inline else overdue_at_s(now_s, tail_s, due - 2 * tail_s)
    state.rows += rows
    return dispatch


def _parts(choice: Choice) -> list[Part]:
    first = choice.pieces[0]
    if len(choice.pieces) == 1 and choice.rows < first[5]:
        return [Part(first[3], first[4], choice.rows)]
    return [Part(piece[3], piece[4], piece[5]) for piece in choice.pieces]


def _leave(board: Board, choice: Choice) -> None:
    """What was chosen leaves the queue; of a piece that is split the rest stays in its place."""
    queue = board.queue
    pieces = queue.pieces
    taken = choice.pieces
    first = taken[0]
    start = choice.start
    rows = choice.rows
    queue.rows -= rows
    if len(taken) == 1 and rows < first[5]:
        at = start if start >= 0 else pieces.index(first)
        pieces[at] = (*first[:3], first[3], first[4] + rows, first[5] - rows)
    elif start >= 0:
        del pieces[start : start + len(taken)]
    else:
        gone = {piece[2] for piece in taken}
        pieces[:] = [piece for piece in pieces if piece[2] not in gone]
