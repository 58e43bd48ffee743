"""Late binding: what a free lane takes from the one queue, given the paths that may be used.

The head of the queue decides how long a batch may take; what follows it joins as long as the head is still in
time and merging pays. Among the paths, the most accurate one that leaves the rest of the queue, and the
arrivals expected meanwhile, feasible on the fastest paths. A query too large for one batch is split into
parts for several lanes. A lane that is slow leaves the work if a faster one will make it.
"""

from __future__ import annotations

from math import sqrt

from planner.routing.board import Board, LaneState
from planner.routing.policy import Choice
from planner.routing.query import Query, Reason
from planner.routing.queue import Piece

LOOK = 8
"""Pieces that are looked at for one that this lane can make."""
SURE = 1.42
"""A more accurate path must meet the deadline with 3.3 standard deviations, not the tail's 2.33 only: one
query lost costs as much as hundreds gain. In powers of tail/median, of a lognormal."""
SPARE = 0.75
"""Share of the time left that the backlog may fill after a more accurate path was chosen."""
DEVIATIONS = 2.0
"""Arrivals while a batch runs are counted with so many standard deviations."""
SLOWED = 2.0
"""A lane that many times slower than the best of its device helps only if it helps."""


def admit(board: Board, query: Query, now_s: float) -> float:
    """Seconds by which the backlog is too long for the query; 0 or less: it can be made."""
    rows = query.rows
    left = query.deadline_s - now_s - board.front_s(query)
    ahead = board.queue.rows + board.committed_rows(now_s)
    return ahead / board.total_rate + board.own_s(rows) - left


def choose(board: Board, lane: LaneState, now_s: float) -> Choice | None:
    """The batch of a free lane, or None: nothing waits, nothing fits, or another lane does it better."""
    pieces = board.queue.clean()
    if not pieces or not lane.order:
        return None
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
    for start in range(min(LOOK, len(pieces))):
        piece = pieces[start]
        if piece[3].settled:
            continue
        choice = _batch(board, lane, pieces, start, now_s, busy, peers)
        if choice is not None:
            return choice
    return None


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
        order = [p for p in order if board.paths[p].value >= board.best]
    share = -(-board.queue.rows // peers)
    for p in order:
        last = p == order[-1]
        found = _form(board, lane, p, pieces, start, left, share, 1.0 if last else SURE, now_s)
        if found is None:
            continue
        taken, rows = found
        if last or _rest_is_feasible(board, lane, p, pieces, start + len(taken), rows, now_s, busy, peers):
            return Choice(p, taken, start, rows, reason(board, p, query))
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
    sure: float,
    now_s: float,
) -> tuple[list[Piece], int] | None:
    """The pieces from `start` on that this path makes in time, and their rows; None if not even the first."""
    state = board.paths[path]
    curve = state.curve
    factor = lane.correction.tail[path]
    first = pieces[start]
    rows = first[5]
    allowed = left / factor
    if sure != 1.0:
        # tail * (tail / median) ** (sure - 1), near enough linear for the spreads that lanes have
        one = min(rows, curve.rows)
        allowed /= 1.0 + (sure - 1.0) * (curve.tail[one] / curve.median[one] - 1.0)
    tail = curve.tail
    most = lane.most[path]
    if rows > most or tail[rows] > allowed:
        part = _part(board, lane, path, rows, allowed, left, now_s)
        return ([first], part) if part else None
    merge = min(lane.merge[path], share)
    taken = [first]
    for at in range(start + 1, len(pieces)):
        piece = pieces[at]
        query = piece[3]
        if query.settled:
            break
        more = rows + piece[5]
        if more > merge or tail[more] > allowed:
            break
        if query.required and state.value < board.best:
            break
        if query.path >= 0 and piece[5] < query.rows:
            break
        taken.append(piece)
        rows = more
    return taken, rows


def _part(
    board: Board, lane: LaneState, path: int, rows: int, allowed: float, left: float, now_s: float
) -> int:
    """Rows of the first part of a query that is split so that all are in time; 0 if that is impossible."""
    curve = board.paths[path].curve
    fits = min(lane.most[path], curve.rows_safe_within(allowed))
    if fits < 1:
        return 0
    parts = -(-rows // fits)
    part = -(-rows // parts)
    each = curve.tail[part] * lane.correction.tail[path]
    turns = 0
    for other in board.usable:
        if other.device == lane.device:
            wait = max(0.0, other.free_s - now_s) if other.flight is not None else 0.0
            if wait < left:
                turns += int((left - wait) / each)
    return part if turns >= parts else 0


def _rest_is_feasible(
    board: Board,
    lane: LaneState,
    path: int,
    pieces: list[Piece],
    after: int,
    rows: int,
    now_s: float,
    busy: float,
    peers: int,
) -> bool:
    """Whether what waits, and comes while this batch runs, can still be made on the fastest paths."""
    state = board.paths[path]
    took = state.curve.median[rows] * lane.correction.median[path]
    observed = board.observed
    coming = observed.rows_s * took
    if coming:
        coming += DEVIATIONS * sqrt(observed.queries_s * took * observed.mean_square)
    waiting = board.queue.rows - rows
    drained = (busy + took * lane.rate + waiting + coming) / board.total_rate
    if after < len(pieces):
        until = pieces[-1][3].deadline_s - now_s
        if peers == 1:
            head = pieces[after]
            start = state.curve.tail[rows] * lane.correction.tail[path]
            for other in board.usable:
                if other is not lane and other.flight is not None:
                    start = min(start, max(0.0, other.free_s - now_s))
            if start + board.own_s(head[5]) > head[3].deadline_s - now_s:
                return False
    else:
        until = observed.budget_s
    return drained + board.own_s(int(observed.mean_rows)) <= SPARE * until


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
