"""Plain reference implementations of batching and admission control.

They look everything up where it is kept and recompute it whenever it is needed: no memoization, no bounds, no
special cases. The fast implementations must decide the same.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf, sqrt

from polyrec.planner.routing import batching, feasibility
from polyrec.planner.routing.admission import admission
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.latency.latency_table import in_batches
from polyrec.planner.routing.policies.policy import BatchChoice
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import LOWEST, RESERVED_SHARE, Piece
from polyrec.planner.routing.router_state import RouterState


def others(state: RouterState, lane: LaneState) -> list[LaneState]:
    return [other for other in state.usable if other is not lane]


def busy(state: RouterState, lane: LaneState, now_s: float) -> float:
    """Executing work of other lanes, in rows at total_rate."""
    rows = 0.0
    for other in others(state, lane):
        if other.in_flight is not None:
            rows += max(0.0, other.free_s - now_s) * other.rate
    return rows * state.front_factor


def is_later(state: RouterState, piece: Piece, now_s: float) -> bool:
    """Whether usual queries that arrive now go ahead of it."""
    due_s = now_s + feasibility.ROUNDED_UP * state.observed.budget_s
    return not piece.query.priority and piece.order_s > due_s


def peers(state: RouterState, lane: LaneState) -> int:
    """Idle lanes of its device, itself included."""
    return 1 + sum(o.in_flight is None and o.device == lane.device for o in others(state, lane))


def choose(state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
    pieces = state.queue.trim()
    if not pieces or not lane.order:
        return None
    if lane.faster and helper_excess_s(state, lane, pieces, now_s) <= 0:
        return None
    backlog = busy(state, lane, now_s) + state.queue.rows
    usual = [piece for piece in pieces if not is_later(state, piece, now_s)]
    if usual:
        late = [piece for piece in pieces if is_later(state, piece, now_s) and not piece.query.settled]
        backlog -= sum(piece.rows for piece in late)
    backlog += extra_rows(state, lane, pieces, now_s)
    if backlog > batching.BACKLOG_THRESHOLD * state.total_rate * ((usual or pieces)[-1].order_s - now_s):
        firsts = [
            skip_urgent_head(state, lane, pieces, head, now_s)
            for head in (head_index(state, lane, pieces), 0)
        ]
    elif lane.faster:
        firsts = [start_of_last_batch(lane, pieces)]
    else:
        firsts = [head_index(state, lane, pieces), 0]
    for first in firsts:
        for start in range(first, min(first + batching.MAX_STARTS, len(pieces))):
            if not pieces[start].query.settled:
                choice = batch(state, lane, pieces, start, now_s)
                if choice is not None:
                    return choice
    return None


def head_index(state: RouterState, lane: LaneState, pieces: list[Piece]) -> int:
    """Index of the most urgent piece below the highest level if the credit covers its time, else 0."""
    lower = [
        (piece.order_s, i)
        for i, piece in enumerate(pieces)
        if piece.level > pieces[0].level and not piece.query.settled
    ]
    if not lower or state.queue.credit_s <= 0:
        return 0
    _, at = min(lower)
    p = lane.order[0] if pieces[at].query.best_only else lane.fastest
    rows = min(pieces[at].rows, lane.max_rows[p])
    seconds = state.paths[p].latency.median[rows] * lane.correction.median[p]
    return at if seconds <= state.queue.credit_s else 0


def helper_excess_s(state: RouterState, lane: LaneState, pieces: list[Piece], now_s: float) -> float:
    rows = float(state.queue.rows)
    for other, rate in lane.faster:
        if other.in_flight is not None:
            rows += max(0.0, other.free_s - now_s) * rate
    last = pieces[-1].query
    left = last.deadline_s - now_s - state.front.answering_s(last.rows)
    rate = sum(rate for _, rate in lane.faster)
    return rows / rate + state.service_time_s(last.rows, state.queue.rows) - batching.HELP_THRESHOLD * left


def start_of_last_batch(lane: LaneState, pieces: list[Piece]) -> int:
    start = len(pieces) - 1
    while start and sum(piece.rows for piece in pieces[start - 1 :]) <= lane.merge_rows[lane.fastest]:
        start -= 1
    return start


def extra_rows(state, lane, pieces, now_s):
    """Rows of merged batches in the time by which small batches of the urgent pieces take longer."""
    latency, merge = state.paths[lane.fastest].latency, lane.merge_rows[lane.fastest]
    mean_rows = max(1, state.queue.rows // len(pieces))
    due_s = now_s + latency.tail[merge] * lane.correction.tail[lane.fastest]
    rows = sum(piece.rows for piece in pieces if (piece.level, piece.order_s) < (pieces[0].level, due_s))
    half = max(
        (n for n in range(1, latency.rows + 1) if latency.tail[n] <= latency.tail[merge] / 2), default=0
    )
    small = max(mean_rows, min(half, rows))
    if not rows or small >= merge:
        return 0.0
    rows_s = {n: n / latency.median[n] for n in (small, merge)}
    return max(0.0, rows * (rows_s[merge] / rows_s[small] - 1))


def skip_urgent_head(
    state: RouterState, lane: LaneState, pieces: list[Piece], head: int, now_s: float
) -> int:
    p = lane.fastest
    latency, factor, merge = state.paths[p].latency, lane.correction.tail[p], lane.merge_rows[p]
    full_s = latency.tail[merge] * factor
    start = bisect_left(pieces, (pieces[head].level, now_s + full_s))
    if pieces[head].order_s - now_s >= full_s or start == len(pieces):
        return head
    small = max(1, latency.max_rows_at_tail((pieces[head].order_s - now_s) / factor))
    large = min(merge, state.queue.rows - sum(piece.rows for piece in pieces[:start]))
    pays = (
        large > 0
        and small / latency.median[small] < batching.EFFICIENCY_THRESHOLD * large / latency.median[large]
    )
    return start if pays else head


def batch(
    state: RouterState, lane: LaneState, pieces: list[Piece], start: int, now_s: float
) -> BatchChoice | None:
    piece = pieces[start]
    query, rows = piece.query, piece.rows
    left = query.deadline_s - now_s - state.front.answering_s(query.rows) - reads_s(state, query)
    if left <= 0:
        return None
    options = lane.options if rows < lane.large_rows else lane.large_options
    order = [option.path for option in options]
    if query.path >= 0 and rows < query.rows:
        kind = state.paths[query.path].representation
        order = [p for p in lane.paths if state.paths[p].representation == kind]
    elif query.best_only:
        order = [p for p in lane.paths if state.paths[p].value >= state.best_value]
    has_rejected = False
    for p in order:
        last = p == order[-1]
        if has_rejected and not last and not state.paths[p].efficient:
            continue
        found = formed(state, lane, p, pieces, start, left, last)
        if found is not None:
            joined, batch_rows = found
            near = any(option.outweighs_speed for option in options if option.path == p)
            fits = last or near
            if fits or rest_is_feasible(state, lane, p, pieces, start, len(joined), batch_rows, now_s):
                return BatchChoice(p, joined, start, batch_rows, reason(state, p, query))
            has_rejected = True
    if order:
        p = order[-1]
        median = state.paths[p].latency.median
        if rows <= lane.max_rows[p] and median[rows] * lane.correction.median[p] <= left:
            return BatchChoice(p, [piece], start, rows, reason(state, p, query))
    return None


def formed(
    state: RouterState, lane: LaneState, p: int, pieces: list[Piece], start: int, left: float, last: bool
) -> tuple[list[Piece], int] | None:
    path, front = state.paths[p], state.front
    tail = path.latency.tail
    first = pieces[start]
    rows = first.rows
    factor = lane.correction.tail[p] if last else lane.correction.cautious_tail[p]
    allowed = left / factor
    if rows > lane.max_rows[p] or tail[rows] > allowed:
        part = part_of(state, lane, p, rows, allowed)
        return ([first], part) if part else None
    merge = min(lane.merge_rows[p], -(-state.queue.rows // peers(state, lane)))
    until_s = first.query.deadline_s - left
    joined = [first]
    for piece in pieces[start + 1 :]:
        query = piece.query
        until_s += front.answer_s + front.answer_row_s * piece.rows
        allowed = min(allowed, (query.deadline_s - until_s) / factor)
        of_another_kind = query.path >= 0 and piece.rows < query.rows
        if (
            query.settled
            or rows + piece.rows > merge
            or tail[rows + piece.rows] > allowed
            or (query.best_only and path.value < state.best_value)
            or of_another_kind
            or query.reading != first.query.reading
        ):
            break
        joined.append(piece)
        rows += piece.rows
    return joined, rows


def part_of(state: RouterState, lane: LaneState, p: int, rows: int, allowed: float) -> int:
    latency, most = state.paths[p].latency, lane.max_rows[p]
    fits = min(most, latency.max_rows_at_tail(allowed))
    if fits < 1:
        return 0
    idle = peers(state, lane)
    parts = -(-rows // fits)
    if parts <= idle:
        return -(-rows // parts)
    each = -(-rows // idle)
    turns = -(-each // most)
    part = -(-each // turns)
    return part if turns * latency.tail[part] <= allowed else 0


def rest_is_feasible(
    state: RouterState,
    lane: LaneState,
    p: int,
    pieces: list[Piece],
    start: int,
    count: int,
    rows: int,
    now_s: float,
) -> bool:
    latency, observed, rate, fill_share = (
        state.paths[p].latency,
        state.observed,
        state.total_rate,
        state.loss_backoff.fill_share,
    )
    took_s = latency.median[rows] * lane.correction.median[p]

    def arriving(rows_s: float, square: float) -> float:
        deviation = sqrt(observed.possible_s * took_s * square) if rows_s else 0.0
        return rows_s * took_s + feasibility.DEVIATIONS * deviation

    waiting = state.queue.rows - rows
    free_rows = fill_share * state.limits.max_queued_rows - waiting
    if arriving(observed.rows_s, observed.mean_square) > free_rows:
        return False
    coming = arriving(observed.urgent_s, observed.urgent_square)
    done = busy(state, lane, now_s) + took_s * lane.rate * state.front_factor
    left_of_first = [pieces[start]] if rows < pieces[start].rows else []
    rest = [*pieces[:start], *left_of_first, *pieces[start + count :]]
    later = sum(
        piece.rows - (rows if piece is pieces[start] else 0)
        for piece in rest
        if not piece.query.settled and is_later(state, piece, now_s)
    )
    first = pieces[start]
    if first.order_s > now_s + feasibility.ROUNDED_UP * observed.budget_s:
        blocked_s = latency.tail[rows] * lane.correction.tail[p]
        blocked_s += state.service_time_s(int(observed.urgent_mean), 0)
        spare = 1 - min(1.0, observed.urgent_s / rate)
        if blocked_s > fill_share * observed.budget_s or took_s / rows * first.rows > fill_share * spare * (
            first.query.deadline_s - now_s
        ):
            later = 0
    backlog = waiting - later + coming + observed.urgent_mean
    last = max(int(observed.urgent_mean), min(int(backlog), state.max_merge_rows))
    backlog_s = (done + backlog - last) / rate + state.service_time_s(last, 0)
    if backlog_s > min(
        state.loss_backoff.expected_share * observed.budget_s, observed.budget_s - state.reserve_s
    ):
        return False
    if start or count == len(pieces):
        return True
    free_s = 0.0
    if peers(state, lane) == 1:
        free_s = latency.tail[rows] * lane.correction.tail[p]
        for other in others(state, lane):
            if other.device == lane.device and other.in_flight is not None:
                free_s = min(free_s, max(0.0, other.free_s - now_s))
    head, middle, last = pieces[count], pieces[(count + len(pieces)) // 2], pieces[-1]
    query = head.query
    left = query.deadline_s - now_s
    kept_s = feasibility.BUDGET_KEPT * (query.deadline_s - query.arrival_s)
    free_s = max(free_s, reads_s(state, query))
    if free_s + state.service_time_s(head.rows, waiting) > min(fill_share * left, left - kept_s):
        return False
    left = middle.query.deadline_s - now_s
    until_s = max((done + waiting / 2) / rate, reads_s(state, middle.query))
    if until_s + state.service_time_s(middle.rows, waiting) > fill_share * left:
        return False
    left = last.query.deadline_s - now_s
    last_rows = max(last.rows, min(waiting, state.max_merge_rows))
    until_s = max((done + waiting - last_rows) / rate, reads_s(state, last.query))
    return until_s + state.service_time_s(last.rows, waiting) <= fill_share * left


def reads_s(state: RouterState, query: Query) -> float:
    """Tail seconds until the rows of a query are there."""
    return state.reads.tail_s(query.misses) if query.reading else 0.0


def reason(state: RouterState, p: int, query: Query) -> Reason:
    if state.paths[p].value >= state.best_value:
        return Reason.BEST
    if query.failed:
        return Reason.FAILURE
    budget_s = query.deadline_s - query.arrival_s - state.front.answering_s(query.rows)
    best = [
        (lane, p) for lane in state.usable for p in lane.paths if state.paths[p].value >= state.best_value
    ]
    usual_s = state.service_time_s(int(state.observed.urgent_mean), 0)
    budgets = query.deadline_s - query.arrival_s, state.observed.budget_s
    kept_s = state.loss_backoff.rest_share * max(budgets)
    for lane, p in best:
        latency = state.paths[p].latency
        options = lane.options if query.rows < lane.large_rows else lane.large_options
        is_fastest = bool(options) and p == options[-1].path
        factors = lane.correction.tail if is_fastest else lane.correction.cautious_tail
        if query.rows <= latency.rows and latency.tail[query.rows] * factors[p] <= budget_s:
            took_s = latency.median[query.rows] * lane.correction.median[p]
            done = took_s * lane.rate * state.front_factor
            near = any(option.outweighs_speed for option in options if option.path == p)
            if is_fastest or near or done / state.total_rate + usual_s <= kept_s:
                return Reason.LOAD
    lost = [
        lane
        for lane in state.lanes
        if any(state.paths[p].value >= state.best_value for p in lane.paths)
        and (not lane.alive or lane.breaker.broken)
    ]
    return Reason.FAILURE if lost and not best else Reason.DEADLINE


def executing_rows(state: RouterState, now_s: float) -> float:
    rows = 0.0
    for lane in state.usable:
        if lane.in_flight is not None:
            rows += max(0.0, lane.free_s - now_s) * lane.rate
    return rows * state.front_factor


def excess_s(state: RouterState, query: Query, now_s: float) -> float:
    """For several lanes, or one that is not inline."""
    pieces = state.queue.pieces
    left = query.deadline_s - now_s - state.front.answering_s(query.rows)
    executing = executing_rows(state, now_s)

    queries = len(pieces) + len(state.queue.held)

    def drain_s(rows: int, queries: int) -> float:
        lanes_rate = sum(lane.rate for lane in state.usable)
        if any(lane.inline for lane in state.usable) or lanes_rate <= state.total_rate:
            return rows / lanes_rate
        return max(rows / lanes_rate, state.front.row_s * rows + state.front.query_s * queries)

    def excess_s(ahead: int, queries: int) -> float:
        backlog_s = admission.MARGIN * (drain_s(ahead, queries) + executing / state.total_rate)
        return backlog_s + state.service_time_s(query.rows, ahead) - left

    if query.best_only:
        best_s = (
            admission.MARGIN * executing / state.total_rate + state.best_service_time_s(query.rows) - left
        )
        if best_s > 0:
            return best_s
    at = bisect_left(pieces, (query.priority or LOWEST, query.deadline_s, inf))
    whole_s = excess_s(state.queue.rows, queries)
    if whole_s <= 0 or not pieces:
        return whole_s
    kept_s = reserved_share_s(state, query, executing) - left
    if kept_s <= 0 or at == len(pieces):
        return min(whole_s, kept_s)
    behind_s = drain_s(state.queue.rows + query.rows, queries + 1) + executing / state.total_rate
    if admission.MARGIN * behind_s > pieces[-1].query.deadline_s - now_s:
        return min(whole_s, kept_s)
    return min(excess_s(sum(piece.rows for piece in pieces[:at]), at), kept_s)


def reserved_share_s(state: RouterState, query: Query, executing: float) -> float:
    """Completion in seconds if lower levels have only their share; infinity if it is not one of them."""
    pieces = state.queue.pieces
    if pieces[0].level >= (query.priority or LOWEST):
        return inf
    lower = [piece for piece in pieces if piece.level > pieces[0].level and piece.order_s <= query.deadline_s]
    ahead = sum(piece.rows for piece in lower)
    missing_s = (ahead + query.rows) / state.total_rate - state.queue.credit_s / len(state.usable)
    share_s = ahead / state.total_rate + max(0.0, missing_s) / (RESERVED_SHARE / (1 - RESERVED_SHARE))
    own = state.best_service_time_s(query.rows) if query.best_only else state.service_time_s(query.rows, 0)
    return admission.MARGIN * executing / state.total_rate + admission.MARGIN * share_s + own


def service_time_s(state: RouterState, rows: int, best_only: bool = False) -> float:
    """With present corrections; infinity if the highest value is required and no lane has it."""
    times = [inf]
    for lane in state.usable:
        own = (
            [p for p in lane.paths if state.paths[p].value >= state.best_value]
            if best_only
            else [option.path for option in (*lane.options[-1:], *lane.large_options[-1:])]
        )
        for p in own[:1] if best_only else own:
            lanes = sum(other.device == lane.device for other in state.usable)
            parts = min(lanes, max(1, rows // lane.merge_rows[p]))
            seconds = in_batches(state.paths[p].latency.tail, -(-rows // parts), lane.max_rows[p])
            times.append(seconds * lane.correction.tail[p])
    return min(times)
