"""Who is refused at the door: what the backlog would make late.

A query comes in, seconds by which it would be late go out. A batch that begins late is small and dear, and
the next is later still, so that goodput collapses where nobody is refused. What is queued behind a query that
has less time does not delay it, if it can bear the delay itself.

Several lanes drain the queue as a stream of rows. A lane alone on its event loop does not: it is free
whenever a query is offered, and takes what waits in one batch, or a few.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf

from polyrec.planner.routing.fair_share import waits_s
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.queue import LOWEST
from polyrec.planner.routing.router_state import Board

MARGIN = 1.2
"""The backlog takes that many times what the latency models say, before a query is taken."""
CLOSE_S = 1e-9
"""What is closer than this is looked at exactly."""


def admit(board: Board, query: Query, now_s: float) -> float:
    """Seconds by which the backlog is too long for the query; 0 or less: it can be made."""
    rows = query.rows
    front = board.front
    left = query.deadline_s - now_s - (front.answer_s + front.answer_row_s * rows)
    queue = board.queue
    pieces, queued = queue.pieces, queue.rows
    if board.alone is None and not query.required:
        rate, own_s = board.total_rate, board.own_s(rows, queued)
        # As if all lanes were at work until the last one is free: mostly even that is little enough.
        most = board.total_rate * (board.ends_s - now_s) if board.ends_s > now_s else 0.0
        over_s = MARGIN * (queued + most) / rate + own_s - left
        if over_s < -CLOSE_S:
            return over_s
        committed = board.committed_rows(now_s)
        over_s = MARGIN * (queued + committed) / rate + own_s - left
    else:
        committed = board.committed_rows(now_s)
        if query.required:
            # Its own time is that of the best path, which no shorter queue makes up for.
            over_s = MARGIN * committed / board.total_rate + board.best_own_s(rows) - left
            if over_s > 0:
                return over_s
        over_s = _takes_s(board, rows, queued, len(pieces), committed) - left
    if over_s <= 0 or not pieces:
        return over_s
    kept_s = inf
    level = query.priority or LOWEST
    if pieces[0][0] < level:
        # However much of a higher priority waits, a share of the lanes' time is not theirs.
        own_s = board.best_own_s(rows) if query.required else board.own_s(rows, 0)
        kept_s = MARGIN * committed / board.total_rate + waits_s(board, query, MARGIN) + own_s - left
        if kept_s <= 0:
            return kept_s
    # behind those of the same deadline, which in a round of the owner's loop is nearly everybody's
    at = bisect_left(pieces, (level, query.deadline_s, inf))
    if at == len(pieces):
        return min(over_s, kept_s)
    # It would go before others: only what is before it counts, if those behind it bear the delay.
    final = pieces[-1][3]
    behind = MARGIN * (queued + rows + committed) / board.total_rate
    if behind > final.deadline_s - now_s:
        return min(over_s, kept_s)
    ahead = sum(piece[5] for piece in pieces[:at])
    return min(_takes_s(board, rows, ahead, at, committed) - left, kept_s)


def _takes_s(board: Board, rows: int, ahead: int, queries: int, committed: float) -> float:
    """Seconds until `rows` rows are executed behind those of so many queries."""
    lane = board.alone
    if lane is not None and not committed:
        return _alone_s(board, lane, rows, ahead, queries)
    return MARGIN * (ahead + committed) / board.total_rate + board.own_s(rows, ahead)


def _alone_s(board: Board, lane: LaneState, rows: int, ahead: int, queries: int) -> float:
    """Whole batches, between which the loop parses what comes, then the query's own; answers before it."""
    front = board.front
    curve = board.paths[lane.fastest].curve
    merge = lane.merge[lane.fastest]
    batches, own = divmod(ahead + rows, merge)
    if not own:
        batches, own = batches - 1, merge
    correction = lane.correction
    batches_s = batches * curve.median[merge] * correction.median[lane.fastest]
    answers_s = queries * front.answer_s + ahead * front.answer_row_s
    before_s = batches_s / (1 - front.busy) + answers_s
    return MARGIN * before_s + curve.tail[own] * correction.tail[lane.fastest]
