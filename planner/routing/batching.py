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

from polyrec.planner.routing.fair_share import turn
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.path_option import Option, options
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import Board

INF = float("inf")
BEST, LOAD, DEADLINE, FAILURE = Reason.BEST, Reason.LOAD, Reason.DEADLINE, Reason.FAILURE
"""By names of their own: asking an enumeration for a member takes Python 3.11 five times as long."""

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
    """The batch of a free lane, or None: nothing waits, nothing fits, or another lane does it better.

    Of lower priorities if it is their turn and one of them can be made, else of the highest.
    """
    queue = board.queue
    pieces = queue.pieces
    if pieces and (pieces[0][3].settled or pieces[-1][3].settled):
        pieces = queue.clean()
    if not pieces or not lane.order:
        return None
    helps = bool(lane.faster)
    if helps:
        over_s = _needed(board, lane, pieces, now_s)
        if over_s <= 0:
            lane.again_s = now_s - over_s
            return None
    device = lane.device
    busy = 0.0
    peers = 1
    soonest_s = INF
    for other in lane.others:
        if other.flight is None:
            if other.device == device:
                peers += 1
        else:
            left = other.free_s - now_s
            if left > 0:
                busy += left * other.rate
            else:
                left = 0.0
            if left < soonest_s and other.device == device:
                soonest_s = left
    busy *= board.past_front
    enough = busy + queue.rows > BEHIND * board.total_rate * (pieces[-1][1] - now_s)
    head = turn(board, lane) if enough or not helps else 0
    while True:
        first = head
        if enough:
            first = _behind(board, lane, pieces, head, now_s)
        elif helps:
            first = _from_the_end(lane, pieces)
        for start in range(first, min(first + LOOK, len(pieces))):
            if pieces[start][3].settled:
                continue
            choice = _batch(board, lane, pieces, start, now_s, busy, peers, soonest_s)
            if choice is not None:
                return choice
        if not head:
            return None
        head = 0


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


def _behind(board: Board, lane: LaneState, pieces: list[Piece], head: int, now_s: float) -> int:
    """Where to begin when there is more than enough to do: the head, or what has time for a batch that pays.

    Serving the head in what little time it has left makes a small, dear batch, and then the next is
    late too, and so on: most of what is spared by that expires all the same.
    """
    p = lane.fastest
    factor = lane.correction.tail[p]
    curve = board.paths[p].curve
    merge = lane.merge[p]
    needed = curve.tail[merge] * factor
    level, deadline_s = pieces[head][:2]
    if deadline_s - now_s >= needed:
        return head
    start = bisect_left(pieces, (level, now_s + needed))
    if start >= len(pieces):
        return head
    small = max(1, curve.rows_safe_within((deadline_s - now_s) / factor))
    large = min(merge, board.queue.rows - sum(piece[5] for piece in pieces[:start]))
    if large <= 0:
        return head
    return start if small / curve.median[small] < PAYS * large / curve.median[large] else head


def _batch(
    board: Board,
    lane: LaneState,
    pieces: list[Piece],
    start: int,
    now_s: float,
    busy: float,
    peers: int,
    soonest_s: float,
) -> Choice | None:
    """The best batch that begins with one piece.

    busy: what other lanes execute, in rows at board.total_rate. peers: lanes of this device that are idle,
    this one included. soonest_s: until the next of them will be.
    """
    piece = pieces[start]
    query = piece[3]
    rows = piece[5]
    front = board.front
    left = query.deadline_s - now_s - (front.answer_s + front.answer_row_s * query.rows)
    if left <= 0:
        return None
    order = lane.options
    if query.required or query.path >= 0:
        order = _options_of(board, lane, piece)
    tails, safes = lane.correction.tail, lane.correction.safe
    crowded = False
    for option in order:
        if crowded and not option.tried:
            continue
        path = option.path
        allowed = left / (tails if option.last else safes)[path]
        if rows > option.most or option.tail[rows] > allowed:
            if peers == 1 and rows <= option.most:
                continue  # a tail never falls with rows: nobody is there to share them with
            part = _part(board, option, rows, allowed, peers)
            if not part:
                continue
            taken, batch = [piece], part
        elif start + 1 < len(pieces) and rows + pieces[start + 1][5] <= option.merge:
            taken, batch = _joined(board, lane, option, pieces, start, left, allowed, peers)
        else:
            taken, batch = [piece], rows
        if option.last or _rest_is_feasible(
            board, lane, option, pieces, start, len(taken), batch, now_s, busy, peers, soonest_s
        ):
            return path, taken, start, batch, reason(board, path, query)
        crowded = True
    if order:
        option = order[-1]
        path = option.path
        if rows <= option.most and option.median[rows] * lane.correction.median[path] <= left:
            return path, [piece], start, rows, reason(board, path, query)
    return None


def _options_of(board: Board, lane: LaneState, piece: Piece) -> list[Option]:
    """The rest of a query that is on its way, or one of required quality, may not have any path."""
    query = piece[3]
    paths = board.paths
    if query.path >= 0 and piece[5] < query.rows:
        kind = paths[query.path].representation
        order = [p for p in lane.paths if paths[p].representation == kind]
    elif query.required:
        order = [p for p in lane.paths if paths[p].value >= board.best]
    else:
        return lane.options
    return options(order, paths, lane.most, lane.merge)


def _joined(
    board: Board,
    lane: LaneState,
    option: Option,
    pieces: list[Piece],
    start: int,
    left: float,
    allowed: float,
    peers: int,
) -> tuple[list[Piece], int]:
    """The pieces from `start` on that this path makes in time, the first of which it does; and their rows.

    In time is who is answered in time: answers are written one after another.
    """
    first = pieces[start]
    taken = [first]
    rows = first[5]
    tail = option.tail
    factor = (lane.correction.tail if option.last else lane.correction.safe)[option.path]
    merge = option.merge
    share = -(-board.queue.rows // peers)
    if share < merge:
        merge = share
    front = board.front
    query_s, row_s = front.answer_s, front.answer_row_s
    until_s = first[3].deadline_s - left
    barred = board.paths[option.path].value < board.best
    for at in range(start + 1, len(pieces)):
        piece = pieces[at]
        query = piece[3]
        if query.settled:
            break
        more = rows + piece[5]
        if more > merge:
            break
        until_s += query_s + row_s * piece[5]
        fits = (query.deadline_s - until_s) / factor
        if fits < allowed:
            allowed = fits
        if tail[more] > allowed:
            break
        if barred and query.required:
            break
        if query.path >= 0 and piece[5] < query.rows:
            break
        taken.append(piece)
        rows = more
    return taken, rows


def _part(board: Board, option: Option, rows: int, allowed: float, peers: int) -> int:
    """Rows of the first part of a query split over lanes that are free now; 0 if that is not enough."""
    fits = board.paths[option.path].curve.rows_safe_within(allowed)
    if fits > option.most:
        fits = option.most
    if fits < 1:
        return 0
    parts = -(-rows // fits)
    if parts <= peers:
        return -(-rows // parts)
    each = -(-rows // peers)
    turns = -(-each // option.most)
    part = -(-each // turns)
    return part if turns * option.tail[part] <= allowed else 0


def _rest_is_feasible(
    board: Board,
    lane: LaneState,
    option: Option,
    pieces: list[Piece],
    start: int,
    count: int,
    rows: int,
    now_s: float,
    busy: float,
    peers: int,
    soonest_s: float,
) -> bool:
    """Whether what waits, and comes while this batch runs, can still be made on the fastest paths."""
    path = option.path
    took = option.median[rows] * lane.correction.median[path]
    observed = board.observed
    coming = observed.rows_s * took
    if coming:
        coming += DEVIATIONS * sqrt(observed.queries_s * took * observed.mean_square)
    waiting = board.queue.rows - rows
    rate = board.total_rate
    spare = board.caution.spare
    busy += took * lane.rate * board.past_front
    if waiting + coming > spare * board.max_queued_rows:
        return False
    own, merge = board.own, board.merge
    size = int(observed.mean_rows)
    if size < merge:
        size += int(waiting + coming)
        if size > merge:
            size = merge
    backlog_s = (busy + waiting + coming) / rate + own[size]
    budget_s = observed.budget_s
    if backlog_s > spare * budget_s or backlog_s > budget_s - board.reserve_s:
        return False
    if start or count >= len(pieces):
        return True
    free = 0.0
    if peers == 1:
        free = option.tail[rows] * lane.correction.tail[path]
        if soonest_s < free:
            free = soonest_s
    head, middle, final = pieces[count], pieces[(count + len(pieces)) // 2], pieces[-1]
    for piece, ahead_s, kept in (
        (head, free, KEPT),
        (middle, (busy + waiting / 2) / rate, 0.0),
        (final, (busy + waiting) / rate, 0.0),
    ):
        query = piece[3]
        left = query.deadline_s - now_s
        size = piece[5]
        if size < merge:
            size += waiting
            if size > merge:
                size = merge
        needed_s = ahead_s + own[size]
        if needed_s > spare * left or needed_s > left - kept * (query.deadline_s - query.arrival_s):
            return False
    return True


def reason(board: Board, path: int, query: Query) -> Reason:
    """Why this path and not the best one: what bound it, a failure only where a lane died or lost work."""
    if board.paths[path].value >= board.best:
        return BEST
    if query.failed:
        return FAILURE
    rows, front = query.rows, board.front
    budget_s = query.deadline_s - query.arrival_s - (front.answer_s + front.answer_row_s * rows)
    for most, tail, factors, top in board.tops:
        if rows <= most and tail[rows] * factors[top] <= budget_s:
            return LOAD
    return FAILURE if board.broken and not board.tops else DEADLINE
