"""Batching: forms a batch for a free lane from the queue, and chooses its path.

The policies `priced` and `static` call `choose`. The first piece in the queue limits how long the batch may
take; further pieces join as long as that limit holds and merging pays. The path is the one of highest value
that keeps the remaining queue and the expected arrivals feasible on the fastest paths (feasibility.py), or
whose quality is worth more than what faster paths would save (policies/near_paths.py).

A query too large for one batch is split over several lanes. A lane much slower than others only takes pieces
that those would not execute in time, from the end of the queue. Queries whose rows are still being read from
a slow tier (queue.py) are not merged with others.
"""

from __future__ import annotations

from bisect import bisect_left

from polyrec.planner.routing.fair_share import head_index
from polyrec.planner.routing.feasibility import (
    FreeLane,
    degraded_reason,
    free_lane,
    leaves_rest_feasible,
)
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.path_option import PathOption, path_options
from polyrec.planner.routing.policies.policy import BatchChoice
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import RouterState

MAX_STARTS = 8
"""Number of pieces tried as the first piece of a batch."""
HELP_THRESHOLD = 0.5
"""A slow lane helps if faster lanes would need more than this share of the remaining time."""
BACKLOG_THRESHOLD = 0.6
"""The queue counts as full if the backlog takes this share of the time until the last usual deadline."""
EFFICIENCY_THRESHOLD = 0.7
"""The head is skipped if its batch would have less than this share of the rows/s of a later batch."""


def choose(state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
    """Forms the batch of a free lane; None if nothing fits or another lane is better suited.

    The batch has lower-priority pieces if it is their turn and one of them fits, otherwise pieces of the
    highest waiting priority.
    """
    queue = state.queue
    pieces = queue.pieces
    if pieces and (pieces[0].query.settled or pieces[-1].query.settled):
        pieces = queue.trim()
    if not pieces or not lane.order:
        return None
    is_helper = bool(lane.faster)
    if is_helper:
        excess_s = _excess_s(state, lane, pieces, now_s)
        if excess_s <= 0:
            lane.recheck_s = now_s - excess_s
            return None
    free = free_lane(state, lane, pieces, now_s)
    is_full = _is_full(free)
    head = head_index(state, lane) if is_full or not is_helper else 0
    while True:
        first = head
        if is_full:
            first = _skip_urgent_head(free, head)
        elif is_helper:
            first = _start_of_last_batch(lane, pieces)
        for start in range(first, min(first + MAX_STARTS, len(pieces))):
            if pieces[start].query.settled:
                continue
            batch = _best_batch(free, start)
            if batch is not None:
                return batch
        if not head:
            return None
        head = 0


def _is_full(free: FreeLane) -> bool:
    """Whether the backlog takes most of the time until the last usual deadline.

    Pieces with later deadlines are ignored, as a single one would hide a full queue.
    """
    state, pieces = free.state, free.pieces
    last, backlog_rows = pieces[-1], free.busy_rows + state.queue.rows
    if free.later_start:
        last, backlog_rows = pieces[free.later_start - 1], backlog_rows - free.later_rows
    full_rows = BACKLOG_THRESHOLD * state.total_rate * (last.order_s - free.now_s)
    return backlog_rows > full_rows or backlog_rows + _extra_rows(free) > full_rows


def _extra_rows(free: FreeLane) -> float:
    """Returns the rows of efficient batches that could execute in the time that urgent pieces take longer.

    Their deadlines force small batches. While the lanes execute those, more pieces become urgent, so
    throughput may stay far below total_rate, with a queue that looks short.
    """
    state, lane, pieces = free.state, free.lane, free.pieces
    merge_rows = lane.merge_rows[lane.fastest]
    mean_rows = max(1, state.queue.rows // len(pieces))
    if mean_rows >= merge_rows:
        return 0.0
    urgent = _end_of_urgent(free, pieces[0])
    if not urgent:
        return 0.0
    latency = state.paths[lane.fastest].latency
    rows = sum(piece.rows for piece in pieces[:urgent])
    small = max(mean_rows, min(latency.max_rows_at_tail(latency.tail[merge_rows] / 2), rows))
    median = latency.median
    return rows * max(0.0, median[small] * merge_rows / (median[merge_rows] * small) - 1)


def _end_of_urgent(free: FreeLane, head: Piece) -> int:
    """Returns the index of the first piece of the head's priority that an efficient batch answers in time."""
    state, lane, pieces, now_s = free[:4]
    p = lane.fastest
    needed_s = state.paths[p].latency.tail[lane.merge_rows[p]] * lane.correction.tail[p]
    return bisect_left(pieces, (head.level, now_s + needed_s))


def _excess_s(state: RouterState, lane: LaneState, pieces: list[Piece], now_s: float) -> float:
    """Returns by how many seconds the faster lanes alone would be late; 0 or less if they need no help."""
    rows = float(state.queue.rows)
    total_rate = 0.0
    for other, rate in lane.faster:
        total_rate += rate
        left_s = other.free_s - now_s
        if left_s > 0 and other.in_flight is not None:
            rows += left_s * rate
    last = pieces[-1].query
    left_s = last.deadline_s - now_s - state.front.answering_s(last.rows)
    return rows / total_rate + state.service_time_s(last.rows, state.queue.rows) - HELP_THRESHOLD * left_s


def _start_of_last_batch(lane: LaneState, pieces: list[Piece]) -> int:
    """Returns the index at which a merged batch of the last pieces begins."""
    start = len(pieces) - 1
    rows = pieces[start].rows
    merge_rows = lane.merge_rows[lane.fastest]
    while start and rows + pieces[start - 1].rows <= merge_rows:
        start -= 1
        rows += pieces[start].rows
    return start


def _skip_urgent_head(free: FreeLane, head: int) -> int:
    """Returns the index of the head, or if the queue is full, of the first piece that allows efficiency.

    An urgent head forces a small, inefficient batch, after which the next head is just as urgent. Most
    queries gained that way are lost again in other batches.
    """
    state, lane, pieces, now_s = free[:4]
    start = _end_of_urgent(free, pieces[head])
    if not head < start < len(pieces):
        return head
    p = lane.fastest
    factor = lane.correction.tail[p]
    latency = state.paths[p].latency
    merge_rows = lane.merge_rows[p]
    small = max(1, latency.max_rows_at_tail((pieces[head].order_s - now_s) / factor))
    large = min(merge_rows, state.queue.rows - sum(piece.rows for piece in pieces[:start]))
    if large <= 0:
        return head
    median = latency.median
    return start if small / median[small] < EFFICIENCY_THRESHOLD * large / median[large] else head


def _best_batch(free: FreeLane, start: int) -> BatchChoice | None:
    """Forms the most valuable batch that begins with the piece at `start`; None if none is in time."""
    state, lane, pieces, now_s = free[:4]
    piece = pieces[start]
    query = piece.query
    rows = piece.rows
    left_s = query.deadline_s - now_s - state.front.answering_s(query.rows)
    if query.reading:
        left_s -= state.reads.tail_s(query.misses)
    if left_s <= 0:
        return None
    options = lane.options_for(rows)
    if query.best_only or query.path >= 0:
        options = _options_of(state, lane, piece)
    tails, cautious_tails = lane.correction.tail, lane.correction.cautious_tail
    has_rejected = False
    for option in options:
        if has_rejected and not option.after_rejection:
            continue
        path = option.path
        allowed_s = left_s / (tails if option.last else cautious_tails)[path]
        formed = _batch_on(free, option, start, left_s, allowed_s)
        if formed is None:
            continue
        batch, batch_rows = formed
        if (
            option.last
            or option.outweighs_speed
            or leaves_rest_feasible(free, option, start, len(batch), batch_rows)
        ):
            return BatchChoice(path, batch, start, batch_rows, degraded_reason(state, path, query))
        has_rejected = True
    if options:
        option = options[-1]
        path = option.path
        if rows <= option.max_rows and option.median[rows] * lane.correction.median[path] <= left_s:
            return BatchChoice(path, [piece], start, rows, degraded_reason(state, path, query))
    return None


def _batch_on(
    free: FreeLane, option: PathOption, start: int, left_s: float, allowed_s: float
) -> tuple[list[Piece], int] | None:
    """Returns the pieces and rows of a batch on one path: merged, a single piece or a part of it.

    None if the piece at `start` is late on this path. left_s, allowed_s: as in `_merge`.
    """
    pieces, peers = free.pieces, free.peers
    piece = pieces[start]
    rows = piece.rows
    if rows <= option.max_rows and option.tail[rows] <= allowed_s:
        if start + 1 < len(pieces) and rows + pieces[start + 1].rows <= option.merge_rows:
            return _merge(free, option, start, left_s, allowed_s)
        return [piece], rows
    if peers == 1 and rows <= option.max_rows:
        return None  # without another idle lane, splitting is not faster overall
    part = _part_rows(free.state, option, rows, allowed_s, peers)
    return ([piece], part) if part else None


def _options_of(state: RouterState, lane: LaneState, piece: Piece) -> list[PathOption]:
    """Returns the lane's paths allowed for a query that is partly dispatched or requires the best quality."""
    query = piece.query
    paths = state.paths
    if query.path >= 0 and piece.rows < query.rows:
        representation = paths[query.path].representation
        order = [p for p in lane.paths if paths[p].representation == representation]
    elif query.best_only:
        order = [p for p in lane.paths if paths[p].value >= state.best_value]
    else:
        return lane.options_for(piece.rows)
    return path_options(order, paths, lane.max_rows, lane.merge_rows)


def _merge(
    free: FreeLane, option: PathOption, start: int, left_s: float, allowed_s: float
) -> tuple[list[Piece], int]:
    """Returns the pieces from `start` on that this path executes in time, and their number of rows.

    Answers are written one after another, so each piece that joins must be in time behind the others.

    left_s: time left to the first piece, which by itself is in time.
    allowed_s: the same, converted to uncorrected tail seconds.
    """
    state, lane, pieces = free.state, free.lane, free.pieces
    first = pieces[start]
    batch = [first]
    rows = first.rows
    tail = option.tail
    factor = (lane.correction.tail if option.last else lane.correction.cautious_tail)[option.path]
    max_rows = option.merge_rows
    share = -(-state.queue.rows // free.peers)
    if share < max_rows:
        max_rows = share
    front = state.front
    query_s, row_s = front.answer_s, front.answer_row_s
    until_s = first.query.deadline_s - left_s
    is_degraded = state.paths[option.path].value < state.best_value
    for at in range(start + 1, len(pieces)):
        piece = pieces[at]
        query = piece.query
        if query.settled:
            break
        total = rows + piece.rows
        if total > max_rows:
            break
        until_s += query_s + row_s * piece.rows
        piece_s = (query.deadline_s - until_s) / factor
        if piece_s < allowed_s:
            allowed_s = piece_s
        if tail[total] > allowed_s:
            break
        if is_degraded and query.best_only:
            break
        if query.path >= 0 and piece.rows < query.rows:
            break
        if query.reading is not first.query.reading:
            break  # neither piece may wait for the other's missing rows
        batch.append(piece)
        rows = total
    return batch, rows


def _part_rows(state: RouterState, option: PathOption, rows: int, allowed_s: float, peers: int) -> int:
    """Returns the rows of the first part of a query split over the device's idle lanes; 0 if it is late."""
    fits = state.paths[option.path].latency.max_rows_at_tail(allowed_s)
    if fits > option.max_rows:
        fits = option.max_rows
    if fits < 1:
        return 0
    parts = -(-rows // fits)
    if parts <= peers:
        return -(-rows // parts)
    each = -(-rows // peers)
    rounds = -(-each // option.max_rows)
    part = -(-each // rounds)
    return part if rounds * option.tail[part] <= allowed_s else 0
