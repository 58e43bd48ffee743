"""Admission control: predicts by how much a query would miss its deadline behind the current backlog.

The router rejects a query if `excess_s` returns a positive number of seconds. Without rejections goodput
collapses past capacity: a batch that begins late must be small and is therefore inefficient, so the next one
begins even later. Waiting pieces with later deadlines do not count against a query, provided that they can
bear the delay.

Several lanes are modeled as draining the queue as a stream of rows. A single inline lane is different: it is
free whenever a query is submitted, and then executes everything that waits in one or a few batches.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf

from polyrec.planner.routing.fair_share import waits_s
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.latency.front_cost import MAX_READ_SHARE
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.queue import LOWEST
from polyrec.planner.routing.router_state import RouterState

MARGIN = 1.2
"""Safety factor on the predicted time of the backlog."""


def excess_s(state: RouterState, query: Query, now_s: float) -> float:
    """Returns the seconds by which the backlog is too long for the query; at most 0: admit it."""
    rows = query.rows
    left_s = query.deadline_s - now_s - state.front.answering_s(rows)
    queue = state.queue
    pieces, queued = queue.pieces, queue.rows
    queries = len(pieces) + len(queue.held)
    rate = state.total_rate
    executing = state.executing_rows(now_s)
    if query.best_only:
        # a shorter queue cannot compensate for the best path's service time
        late_s = MARGIN * executing / rate + state.best_service_time_s(rows) - left_s
        if late_s > 0:
            return late_s
    late_s = _completion_s(state, rows, queued, queries, executing) - left_s
    if late_s <= 0 or not pieces:
        return late_s
    share_s = inf
    level = query.priority or LOWEST
    if pieces[0].level < level:
        # lower priorities have a reserved share of lane time, whatever waits with a higher priority
        service_s = state.best_service_time_s(rows) if query.best_only else state.service_time_s(rows, 0)
        share_s = MARGIN * executing / rate + waits_s(state, query, MARGIN) + service_s - left_s
        if share_s <= 0:
            return share_s
    # behind pieces with the same deadline, which most queries of one reading round share
    at = bisect_left(pieces, (level, query.deadline_s, inf))
    if at == len(pieces):
        return min(late_s, share_s)
    # the query would overtake others; if those can bear the delay, only the pieces before it count
    last = pieces[-1].query
    last_s = MARGIN * (state.drain_s(queued + rows, queries + 1) + executing / rate)
    if last_s > last.deadline_s - now_s:
        return min(late_s, share_s)
    ahead = sum(piece.rows for piece in pieces[:at])
    return min(_completion_s(state, rows, ahead, at, executing) - left_s, share_s)


def _completion_s(state: RouterState, rows: int, ahead: int, queries: int, executing: float) -> float:
    """Predicts the seconds until `rows` rows are executed, behind `ahead` rows of `queries` queries."""
    lane = state.sole_inline_lane
    if lane is not None and not executing:
        return _inline_completion_s(state, lane, rows, ahead, queries)
    backlog_s = state.drain_s(ahead, queries) + executing / state.total_rate
    return MARGIN * backlog_s + state.service_time_s(rows, ahead)


def _inline_completion_s(state: RouterState, lane: LaneState, rows: int, ahead: int, queries: int) -> float:
    """Does the same for a single inline lane: whole batches with parsing in between, answers, a last batch.

    The model has only the share of the event loop's time that other models and programs leave, and reads its
    own requests within that share.
    """
    front, correction = state.front, lane.correction
    latency = state.paths[lane.fastest].latency
    merge_rows = lane.merge_rows[lane.fastest]
    merged_s = latency.median[merge_rows] * correction.median[lane.fastest] * (1 - correction.waiting)
    answers_s = queries * front.answer_s + ahead * front.answer_row_s
    share = lane.available
    executing_share = max(share - front.read_share, share * (1 - MAX_READ_SHARE))

    def end_s(batches: float, last_s: float) -> float:
        return MARGIN * (batches * merged_s / executing_share + answers_s / share) + last_s

    batches, last_rows = divmod(ahead + rows, merge_rows)
    if not last_rows:
        batches, last_rows = batches - 1, merge_rows
    merged_end_s = end_s(batches, latency.tail[last_rows] * correction.tail[lane.fastest])
    if rows < lane.large_rows or rows > lane.large_options[-1].max_rows:
        return merged_end_s
    # it executes alone on the path of large queries
    large = lane.large_options[-1]
    return min(merged_end_s, end_s(ahead / merge_rows, large.tail[rows] * correction.tail[large.path]))
