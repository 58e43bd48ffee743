"""Late binding: what a free lane takes from the one queue, given the paths that may be used.

The head of the queue decides how long a batch may take; what follows it joins as long as the head is still in
time and merging pays. Among the paths, the most accurate one that leaves the rest of the queue, and the
arrivals expected meanwhile, feasible on the fastest paths. A query too large for one batch is split into
parts for several lanes. A lane that is much slower than others helps from the end of the queue, and
only with what those would not make.
"""

from __future__ import annotations

from bisect import bisect_left
from math import sqrt

from planner.routing.board import Board
from planner.routing.lane import LaneState
from planner.routing.policy import Choice
from planner.routing.query import Query, Reason
from planner.routing.queue import Piece

LOOK = 8
"""Pieces that are looked at for one that this lane can make."""
KEPT = 0.3
"""Share of its budget that the next query must have left then: what waits long for the sake of accuracy has
no time for surprises."""
HELP = 0.5
"""A slow lane helps where faster ones would need more than this share of the time left."""
DEVIATIONS = 2.0
"""Arrivals while a batch runs are counted with so many standard deviations."""
BEHIND = 0.6
"""There is more than enough to do when the backlog fills that share of the last deadline's time."""
PAYS = 0.7
"""A batch pays if it does at least that share of the rows a second that one after it would."""


def choose(board: Board, lane: LaneState, now_s: float) -> Choice | None:
    """The batch of a free lane, or None: nothing waits, nothing fits, or another lane does it better."""
    pieces = board.queue.clean()
    if not pieces or not lane.order:
        return None
    first = 0
    if lane.faster:
        over_s = _needed(board, lane, pieces, now_s)
        if over_s <= 0:
            lane.again_s = now_s - over_s
            return None
        first = -1
    busy = 0.0
    peers = 1
    for other in board.usable:
        if other is lane:
            continue
        if other.flight is None:
            if other.device == lane.device:
                peers += 1
        else:
            left = other.free_s - now_s
            if left > 0:
                busy += left * other.rate
    if busy + board.queue.rows > BEHIND * board.total_rate * (pieces[-1][1] - now_s):
        first = _behind(board, lane, pieces, now_s)
    elif first:
        first = _from_the_end(lane, pieces)
    for start in range(first, min(first + LOOK, len(pieces))):
        if pieces[start][3].settled:
            continue
        choice = _batch(board, lane, pieces, start, now_s, busy, peers)
        if choice is not None:
            return choice
    return None


def _needed(board: Board, lane: LaneState, pieces: list[Piece], now_s: float) -> float:
    """Seconds by which faster lanes would take too long for what waits; 0 or less: they need no help."""
    rows = float(board.queue.rows)
    rate = 0.0
    for other, at in lane.faster:
        rate += at
        left = other.free_s - now_s
        if left > 0 and other.flight is not None:
            rows += left * at
    last = pieces[-1][3]
    left = last.deadline_s - now_s - board.front_s(last)
    return rows / rate + board.own_s(last.rows, board.queue.rows) - HELP * left


def _from_the_end(lane: LaneState, pieces: list[Piece]) -> int:
    """Where a batch of the last pieces begins."""
    start = len(pieces) - 1
    rows = pieces[start][5]
    most = lane.merge[lane.fastest]
    while start and rows + pieces[start - 1][5] <= most:
        start -= 1
        rows += pieces[start][5]
    return start


def _behind(board: Board, lane: LaneState, pieces: list[Piece], now_s: float) -> int:
    """Where to begin when there is more than enough to do: the head, or what has time for a batch that pays.

    Serving the head in what little time it has left makes a small, dear batch, and then the next is
    late too, and so on: most of what is spared by that expires all the same.
    """
    p = lane.fastest
    factor = lane.correction.tail[p]
    curve = board.paths[p].curve
    merge = lane.merge[p]
    needed = curve.tail[merge] * factor
    if pieces[0][1] - now_s >= needed:
        return 0
    start = bisect_left(pieces, (pieces[0][0], now_s + needed))
    if start >= len(pieces):
        return 0
    small = max(1, curve.rows_safe_within((pieces[0][1] - now_s) / factor))
    large = min(merge, board.queue.rows - sum(piece[5] for piece in pieces[:start]))
    if large <= 0:
        return 0
    return start if small / curve.median[small] < PAYS * large / curve.median[large] else 0


def _batch(
    board: Board,
    lane: LaneState,
    pieces: list[Piece],
    start: int,
    now_s: float,
    busy: float,
    peers: int,
) -> Choice | None:
    """The best batch that begins with one piece."""
    piece = pieces[start]
    query = piece[3]
    left = query.deadline_s - now_s - board.front_s(query)
    if left <= 0:
        return None
    order = lane.order
    if query.path >= 0 and piece[5] < query.rows:
        kind = board.paths[query.path].representation
        order = [p for p in lane.paths if board.paths[p].representation == kind]
    elif query.required:
        order = [p for p in lane.paths if board.paths[p].value >= board.best]
    share = -(-board.queue.rows // peers)
    crowded = False
    for p in order:
        last = p == order[-1]
        if crowded and not last and not board.paths[p].efficient:
            continue
        found = _form(board, lane, p, pieces, start, left, share, peers, last)
        if found is None:
            continue
        taken, rows = found
        if last or _rest_is_feasible(board, lane, p, pieces, start, len(taken), rows, now_s, busy, peers):
            return Choice(p, taken, start, rows, reason(board, p, query))
        crowded = True
    if order:
        p = order[-1]
        curve = board.paths[p].curve
        rows = piece[5]
        if rows <= lane.most[p] and curve.median[rows] * lane.correction.median[p] <= left:
            return Choice(p, [piece], start, rows, reason(board, p, query))
    return None


def _form(
    board: Board,
    lane: LaneState,
    path: int,
    pieces: list[Piece],
    start: int,
    left: float,
    share: int,
    peers: int,
    last: bool,
) -> tuple[list[Piece], int] | None:
    """The pieces from `start` on that this path makes in time, and their rows; None if not even the first.

    In time is who is answered in time: answers are written one after another.
    """
    state = board.paths[path]
    curve = state.curve
    first = pieces[start]
    rows = first[5]
    factor = lane.correction.tail[path]
    if not last:
        factor *= state.sure
    allowed = left / factor
    tail = curve.tail
    if rows > lane.most[path] or tail[rows] > allowed:
        part = _part(board, lane, path, rows, allowed, peers)
        return ([first], part) if part else None
    merge = min(lane.merge[path], share)
    front = board.front
    query_s, row_s = front.answer_s, front.answer_row_s
    until_s = first[3].deadline_s - left
    taken = [first]
    for at in range(start + 1, len(pieces)):
        piece = pieces[at]
        query = piece[3]
        if query.settled:
            break
        more = rows + piece[5]
        until_s += query_s + row_s * piece[5]
        fits = (query.deadline_s - until_s) / factor
        if fits < allowed:
            allowed = fits
        if more > merge or tail[more] > allowed:
            break
        if query.required and state.value < board.best:
            break
        if query.path >= 0 and piece[5] < query.rows:
            break
        taken.append(piece)
        rows = more
    return taken, rows


def _part(board: Board, lane: LaneState, path: int, rows: int, allowed: float, peers: int) -> int:
    """Rows of the first part of a query split over lanes that are free now; 0 if that is not enough."""
    curve = board.paths[path].curve
    fits = min(lane.most[path], curve.rows_safe_within(allowed))
    if fits < 1:
        return 0
    parts = -(-rows // fits)
    if parts <= peers:
        return -(-rows // parts)
    each = -(-rows // peers)
    turns = -(-each // lane.most[path])
    part = -(-each // turns)
    return part if turns * curve.tail[part] <= allowed else 0


def _rest_is_feasible(
    board: Board,
    lane: LaneState,
    path: int,
    pieces: list[Piece],
    start: int,
    count: int,
    rows: int,
    now_s: float,
    busy: float,
    peers: int,
) -> bool:
    """Whether what waits, and comes while this batch runs, can still be made on the fastest paths."""
    curve = board.paths[path].curve
    took = curve.median[rows] * lane.correction.median[path]
    observed = board.observed
    coming = observed.rows_s * took
    if coming:
        coming += DEVIATIONS * sqrt(observed.queries_s * took * observed.mean_square)
    waiting = board.queue.rows - rows
    rate = board.total_rate
    spare = board.caution.spare
    busy += took * lane.rate
    if waiting + coming > spare * board.limits.max_queued_rows:
        return False
    backlog_s = (busy + waiting + coming) / rate + board.own_s(int(observed.mean_rows), waiting + coming)
    if backlog_s > min(spare * observed.budget_s, observed.budget_s - board.reserve_s):
        return False
    if start == 0 and count < len(pieces):
        head = pieces[count]
        free = 0.0
        if peers == 1:
            free = curve.tail[rows] * lane.correction.tail[path]
            for other in board.usable:
                if other is not lane and other.device == lane.device and other.flight is not None:
                    free = min(free, max(0.0, other.free_s - now_s))
        query = head[3]
        left = query.deadline_s - now_s
        spared = min(spare * left, left - KEPT * (query.deadline_s - query.arrival_s))
        if free + board.own_s(head[5], waiting) > spared:
            return False
        middle = pieces[(count + len(pieces)) // 2]
        if (busy + waiting / 2) / rate + board.own_s(middle[5], waiting) > spare * (
            middle[3].deadline_s - now_s
        ):
            return False
        final = pieces[-1]
        if (busy + waiting) / rate + board.own_s(final[5], waiting) > spare * (final[3].deadline_s - now_s):
            return False
    return True


def reason(board: Board, path: int, query: Query) -> Reason:
    """Why this path and not the most accurate one."""
    if board.paths[path].value >= board.best:
        return Reason.BEST
    if query.retries:
        return Reason.FAILURE
    budget_s = query.deadline_s - query.arrival_s - board.front_s(query)
    up = False
    for lane in board.usable:
        for p in lane.paths:
            if board.paths[p].value >= board.best:
                up = True
                if query.rows > board.paths[p].curve.rows:
                    continue
                if board.paths[p].curve.tail[query.rows] * lane.correction.tail[p] <= budget_s:
                    return Reason.LOAD
    return Reason.DEADLINE if up else Reason.FAILURE
