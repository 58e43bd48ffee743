"""Feasibility: predicts whether a candidate batch leaves enough time for the rest of the queue.

batching.py asks before it chooses a path slower than the fastest. The rest of the queue, and the arrivals
expected while the batch runs, are assumed to run on the fastest paths, since they can still be degraded to
those.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf, sqrt
from typing import NamedTuple

from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.lanes.path import PathState
from polyrec.planner.routing.observed_traffic import ObservedTraffic
from polyrec.planner.routing.path_option import PathOption
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import LOWEST, Piece, Queue
from polyrec.planner.routing.router_state import RouterState

BEST, LOAD, DEADLINE, FAILURE = Reason.BEST, Reason.LOAD, Reason.DEADLINE, Reason.FAILURE
"""Aliases, since attribute access on an Enum takes five times as long as a global in Python 3.11."""
BUDGET_KEPT = 0.3
"""Share of its budget that the next query must have left, as a reserve for mispredictions."""
DEVIATIONS = 2.0
"""Number of standard deviations added to the arrivals expected while a batch runs."""

ROUNDED_UP = 1 + 1e-6


class FreeLane(NamedTuple):
    """A free lane, with all that the choice of its batch depends on: the queue, and work besides the batch.

    pieces: of the queue.
    busy_rows: work executing on other lanes, in rows at total_rate.
    due_s: see `usually_due_s`.
    later_start, later_rows: index of the first waiting piece that is due after due_s, and rows of all such
        pieces.
    peers: idle lanes of the device, including this one.
    next_peer_s: seconds until the next busy lane of the device is free.
    """

    state: RouterState
    lane: LaneState
    pieces: list[Piece]
    now_s: float
    busy_rows: float
    due_s: float
    later_start: int
    later_rows: int
    peers: int
    next_peer_s: float


def free_lane(state: RouterState, lane: LaneState, pieces: list[Piece], now_s: float) -> FreeLane:
    """Collects what the choice of a free lane's batch depends on."""
    busy_rows = 0.0
    peers = 1
    next_peer_s = inf
    for other in lane.others:
        if other.in_flight is None:
            peers += other.device == lane.device
            continue
        left_s = max(other.free_s - now_s, 0.0)
        busy_rows += left_s * other.rate
        if left_s < next_peer_s and other.device == lane.device:
            next_peer_s = left_s
    due_s = usually_due_s(state, now_s)
    start, later = later_rows(state.queue, due_s)
    busy_rows *= state.front_factor
    return FreeLane(state, lane, pieces, now_s, busy_rows, due_s, start, later, peers, next_peer_s)


def usually_due_s(state: RouterState, now_s: float) -> float:
    """Returns the deadline of a usual query that arrives now, plus a little so that equality counts."""
    return now_s + ROUNDED_UP * state.observed.budget_s


def later_rows(queue: Queue, due_s: float) -> tuple[int, int]:
    """Returns (index of the first piece, total rows) of waiting pieces that are due after due_s.

    Pieces with a priority are excluded, as they go first whatever their deadline. Sums over the shorter side
    of the queue, since thousands of small queries may wait and this is called for every batch.
    """
    pieces = queue.pieces
    if not pieces or pieces[-1].order_s <= due_s:
        return len(pieces), 0
    start = bisect_right(pieces, (LOWEST, due_s, inf))
    if 2 * start >= len(pieces):
        return start, sum(piece.rows for piece in pieces[start:] if not piece.query.settled)
    rows = queue.rows - sum(piece.rows for piece in pieces[:start] if not piece.query.settled)
    return start, rows - sum(query.rows for query in queue.held if not query.settled)


def _arriving(observed: ObservedTraffic, rows_s: float, square: float, seconds: float) -> float:
    """Returns a high estimate of the rows that arrive in `seconds`.

    rows_s: arrival rate in rows/s.
    square: mean square of rows per query.
    """
    rows = rows_s * seconds
    return rows + DEVIATIONS * sqrt(observed.possible_s * seconds * square) if rows else 0.0


def leaves_rest_feasible(free: FreeLane, option: PathOption, start: int, count: int, rows: int) -> bool:
    """Whether waiting and expected queries can still execute in time on the fastest paths.

    Checks the free space in the queue, the backlog against the usual budget, and the deadlines of the next,
    the middle and the last remaining piece.

    start, count, rows: the batch has `count` pieces from index `start` on, with `rows` rows.
    """
    state, lane, pieces, path = free.state, free.lane, free.pieces, option.path
    batch_s = option.median[rows] * lane.correction.median[path]
    waiting = state.queue.rows - rows
    if not _queue_has_room(state, waiting, batch_s):
        return False
    busy_rows = free.busy_rows + batch_s * lane.rate * state.front_factor
    urgent = waiting
    if free.later_rows:
        urgent -= _later_rows_left(free, option, pieces[start : start + count], rows)
    if not _backlog_fits(state, urgent, busy_rows, batch_s):
        return False
    if start or count >= len(pieces):
        return True
    free_in_s = 0.0
    if free.peers == 1:
        free_in_s = min(option.tail[rows] * lane.correction.tail[path], free.next_peer_s)
    return _pieces_fit(free, count, free_in_s, busy_rows, waiting)


def _queue_has_room(state: RouterState, waiting: int, batch_s: float) -> bool:
    """Whether the queue has room for what arrives during a batch of batch_s seconds.

    waiting: rows behind the batch, also those that are not urgent, as they occupy the queue too.
    """
    observed = state.observed
    free_rows = state.loss_backoff.fill_share * state.limits.max_queued_rows - waiting
    return _arriving(observed, observed.rows_s, observed.mean_square, batch_s) <= free_rows


def _backlog_fits(state: RouterState, urgent: int, busy_rows: float, batch_s: float) -> bool:
    """Whether all rows due by the usual deadline can be executed within the share of it that losses allow.

    urgent: those of them that wait behind the batch. busy_rows: executing, the batch included, in rows at
    total_rate. batch_s: of the batch, during which others arrive.
    """
    observed, most = state.observed, state.max_merge_rows
    arriving = _arriving(observed, observed.urgent_s, observed.urgent_square, batch_s)
    backlog = urgent + arriving + observed.urgent_mean
    # of the last batch, all rows end together
    last_rows = int(observed.urgent_mean)
    if last_rows < most:
        last_rows = min(int(backlog), most)
    backlog_s = (busy_rows + backlog - last_rows) / state.total_rate + state.service_times[last_rows]
    budget_s = observed.budget_s
    return backlog_s <= min(state.loss_backoff.expected_share * budget_s, budget_s - state.reserve_s)


def _pieces_fit(free: FreeLane, count: int, free_in_s: float, busy_rows: float, waiting: int) -> bool:
    """Whether the next, the middle and the last piece behind the batch can still be in time.

    count: pieces in the batch.
    free_in_s: seconds until a lane is free.
    busy_rows: executing rows, including the batch.
    waiting: rows behind the batch.
    """
    state, pieces, now_s = free.state, free.pieces, free.now_s
    rate, fill_share = state.total_rate, state.loss_backoff.fill_share
    service_times, max_merge_rows = state.service_times, state.max_merge_rows
    following, middle, last = pieces[count], pieces[(count + len(pieces)) // 2], pieces[-1]
    last_rows = max(last.rows, min(waiting, max_merge_rows))
    for piece, delay_s, kept in (
        (following, free_in_s, BUDGET_KEPT),
        (middle, (busy_rows + waiting / 2) / rate, 0.0),
        (last, (busy_rows + waiting - last_rows) / rate, 0.0),
    ):
        query = piece.query
        left_s = query.deadline_s - now_s
        # pieces merge with waiting ones, unless they are larger than merged batches may be
        size = max(piece.rows, min(piece.rows + waiting, max_merge_rows))
        if query.reading:
            delay_s = max(delay_s, state.reads.tail_s(query.misses))
        needed_s = delay_s + service_times[size]
        if needed_s > fill_share * left_s or needed_s > left_s - kept * (query.deadline_s - query.arrival_s):
            return False
    return True


def _later_rows_left(free: FreeLane, option: PathOption, batch: list[Piece], rows: int) -> int:
    """Returns how many of `later_rows` usual queries can still overtake once a batch of `rows` rows runs.

    A batch that begins with such rows cannot be overtaken itself. So the result is 0 if it takes too much of
    the usual budget, or if its whole query takes too much of the time that usual queries leave.
    """
    state, lane = free.state, free.lane
    observed, fill_share = state.observed, state.loss_backoff.fill_share
    first, later, due_s = batch[0], free.later_rows, free.due_s
    if batch[-1].order_s > due_s:
        # rows in the batch no longer wait, but the remaining parts of a split query do
        later -= min(rows, sum(p.rows for p in batch if p.order_s > due_s and p.level == LOWEST))
    if later and first.order_s > due_s:
        path = option.path
        tail_s = option.tail[rows] * lane.correction.tail[path]
        query_s = option.median[rows] * lane.correction.median[path] * first.rows / rows
        spare_s = (1 - min(1.0, observed.urgent_s / state.total_rate)) * (first.query.deadline_s - free.now_s)
        if (
            tail_s + state.service_times[int(observed.urgent_mean)] > fill_share * observed.budget_s
            or query_s > fill_share * spare_s
        ):
            return 0
    return later


def degraded_reason(state: RouterState, path: int, query: Query) -> Reason:
    """Returns why this path and not the best one answers a query; BEST if it is the best one.

    FAILURE means that a lane died or lost work, LOAD that an idle server would choose the best path, DEADLINE
    that it would not, as the budget is too short.
    """
    if state.paths[path].value >= state.best_value:
        return BEST
    if query.failed:
        return FAILURE
    if any(_suits_idle_server(state, query, lane, best) for lane, best in state.best_paths):
        return LOAD
    return FAILURE if state.best_lane_failed and not state.best_paths else DEADLINE


def _suits_idle_server(state: RouterState, query: Query, lane: LaneState, path: PathState) -> bool:
    """Whether a path would be chosen if nothing else waited, ran or was expected.

    It must answer in time and, unless it is the fastest or nearly as fast, leave time for one usual query, as
    in `leaves_rest_feasible`. If usual budgets are shorter than the query's own, that is due to the load.
    """
    rows, latency, correction = query.rows, path.latency, lane.correction
    if rows > latency.rows:
        return False
    option = next((o for o in lane.options_for(rows) if o.path == path.index), None)
    is_fastest = option is not None and option.last
    factors = correction.tail if is_fastest else correction.cautious_tail
    budget_s = query.deadline_s - query.arrival_s
    if latency.tail[rows] * factors[path.index] > budget_s - state.front.answering_s(rows):
        return False
    if option is not None and (option.last or option.outweighs_speed):
        return True
    observed = state.observed
    batch_s = latency.median[rows] * correction.median[path.index]
    backlog_s = batch_s * lane.rate * state.front_factor / state.total_rate
    backlog_s += state.service_time_s(int(observed.urgent_mean), 0)
    return backlog_s <= state.loss_backoff.rest_share * max(budget_s, observed.budget_s)
