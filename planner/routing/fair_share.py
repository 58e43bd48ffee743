"""Reserves a share of lane time for lower priorities, by deficit round robin over two classes.

Pieces of the highest waiting priority go first (queue.py). While they execute, waiting lower priorities earn
RESERVED_SHARE / (1 - RESERVED_SHARE) seconds of credit per second of lane time. Once the credit covers their
most urgent piece, they get the next batch, and its time is deducted. So privileged queries cannot starve the
others, which get at least RESERVED_SHARE of lane time while they have work, and no more while privileged work
waits. Credit is in seconds, not rows, as privileged queries may require a slow path.

Source: Shreedhar and Varghese, Efficient fair queuing using deficit round robin, SIGCOMM'95.
"""

from __future__ import annotations

from bisect import bisect_left

from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.queue import LOWEST, RESERVED_SHARE, Piece, Queue
from polyrec.planner.routing.router_state import RouterState

EARNED = RESERVED_SHARE / (1 - RESERVED_SHARE)
"""Seconds of credit per second of privileged work."""
SAVED_S = 0.005
"""Maximum credit while no lower priority waits.

It is above 0 so that a single ordinary query need not wait for nine times its service time of privileged
work. It also bounds how long privileged queries are delayed at once."""
MAX_S = 1.0
"""Maximum credit while lower priorities wait, possibly for lack of a usable lane."""


def head_index(state: RouterState, lane: LaneState) -> int:
    """Returns the index in the queue from which this lane chooses.

    That is 0, the highest waiting priority, unless the credit covers the most urgent piece of lower priority;
    then it is the index of that piece.
    """
    queue = state.queue
    pieces = queue.pieces
    credit_s = queue.credit_s
    if credit_s <= 0 or not pieces or pieces[0].level == pieces[-1].level or lane.fastest < 0:
        return 0
    first = 0
    at = _next_level(queue, 0)
    while at < len(pieces):
        if pieces[at].query.settled:
            at += 1
            continue
        if not first or pieces[at].order_s < pieces[first].order_s:
            first = at
        at = _next_level(queue, at)
    return first if first and _min_s(state, lane, pieces[first].query, pieces[first].rows) <= credit_s else 0


def pieces_from_head(state: RouterState, lane: LaneState) -> list[Piece]:
    """Returns all pieces, rotated to start with the one at `head_index`."""
    pieces = state.queue.trim()
    first = head_index(state, lane)
    return [*pieces[first:], *pieces[:first]] if first else pieces


def charge(queue: Queue, level: int, seconds: float) -> None:
    """Updates the credit after a batch was taken from the queue. seconds: its lane time."""
    pieces = queue.pieces
    if pieces and pieces[0].level < level:
        queue.credit_s -= seconds
        return
    if level == LOWEST:
        return
    waits = bool(pieces) and pieces[-1].level > level
    queue.credit_s = min(queue.credit_s + EARNED * seconds, MAX_S if waits else SAVED_S)


def waits_s(state: RouterState, query: Query, margin: float) -> float:
    """Returns an upper bound in seconds on a lower-priority query's wait, counting only the reserved share.

    margin: safety factor on predicted times, as in admission control.
    """
    queue = state.queue
    pieces = queue.pieces
    first = _next_level(queue, 0)
    ahead = sum(piece.rows for piece in pieces[first:] if piece.order_s <= query.deadline_s)
    needed_s = (ahead + query.rows) / state.total_rate
    credit_s = queue.credit_s / len(state.usable)
    return margin * (ahead / state.total_rate + max(0.0, needed_s - credit_s) / EARNED)


def _next_level(queue: Queue, at: int) -> int:
    """Returns the index after the last piece with the same level as the piece at `at`."""
    pieces = queue.pieces
    return bisect_left(pieces, (pieces[at].level + 1,), at)


def _min_s(state: RouterState, lane: LaneState, query: Query, rows: int) -> float:
    """Predicts the service time in seconds of a piece, or of the part of it that fits in one batch."""
    path = lane.order[0] if query.best_only else lane.fastest
    latency = state.paths[path].latency
    return latency.median[min(rows, lane.max_rows[path])] * lane.correction.median[path]
