"""The rules of late binding and of the door in their plainest form, which fast ones are compared with.

Everything is looked up where it is kept and asked whenever it is needed: no value is carried along, nothing
is decided by a bound, no case has a way of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, inf, log, sqrt

from polyrec.planner.routing import batching as late
from polyrec.planner.routing.admission import admission as door
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.latency import correction
from polyrec.planner.routing.latency.latency_table import Curve, in_batches
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import LOWEST, SHARE, Piece
from polyrec.planner.routing.router_state import Board


def others(board: Board, lane: LaneState) -> list[LaneState]:
    return [other for other in board.usable if other is not lane]


def busy(board: Board, lane: LaneState, now_s: float) -> float:
    """What other lanes execute, in rows at the rate of all lanes and the front."""
    rows = 0.0
    for other in others(board, lane):
        if other.flight is not None:
            rows += max(0.0, other.free_s - now_s) * other.rate
    return rows * board.past_front


def peers(board: Board, lane: LaneState) -> int:
    """Lanes of its device that are idle, itself included."""
    return 1 + sum(o.flight is None and o.device == lane.device for o in others(board, lane))


def choose(board: Board, lane: LaneState, now_s: float) -> Choice | None:
    pieces = board.queue.clean()
    if not pieces or not lane.order:
        return None
    if lane.faster and needed_s(board, lane, pieces, now_s) <= 0:
        return None
    backlog = busy(board, lane, now_s) + board.queue.rows
    if backlog > late.BEHIND * board.total_rate * (pieces[-1][1] - now_s):
        firsts = [behind(board, lane, pieces, head, now_s) for head in (turn(board, lane, pieces), 0)]
    elif lane.faster:
        firsts = [from_the_end(lane, pieces)]
    else:
        firsts = [turn(board, lane, pieces), 0]
    for first in firsts:
        for start in range(first, min(first + late.LOOK, len(pieces))):
            if not pieces[start][3].settled:
                choice = batch(board, lane, pieces, start, now_s)
                if choice is not None:
                    return choice
    return None


def turn(board: Board, lane: LaneState, pieces: list[Piece]) -> int:
    """The most urgent of those below the highest level, if their credit covers its time; else 0."""
    lower = [
        (piece[1], i) for i, piece in enumerate(pieces) if piece[0] > pieces[0][0] and not piece[3].settled
    ]
    if not lower or board.queue.credit_s <= 0:
        return 0
    _, at = min(lower)
    p = lane.order[0] if pieces[at][3].required else lane.fastest
    rows = min(pieces[at][5], lane.most[p])
    seconds = board.paths[p].curve.median[rows] * lane.correction.median[p]
    return at if seconds <= board.queue.credit_s else 0


def needed_s(board: Board, lane: LaneState, pieces: list[Piece], now_s: float) -> float:
    rows = float(board.queue.rows)
    for other, rate in lane.faster:
        if other.flight is not None:
            rows += max(0.0, other.free_s - now_s) * rate
    last = pieces[-1][3]
    left = last.deadline_s - now_s - board.front_s(last)
    rate = sum(rate for _, rate in lane.faster)
    return rows / rate + board.own_s(last.rows, board.queue.rows) - late.HELP * left


def from_the_end(lane: LaneState, pieces: list[Piece]) -> int:
    start = len(pieces) - 1
    while start and sum(piece[5] for piece in pieces[start - 1 :]) <= lane.merge[lane.fastest]:
        start -= 1
    return start


def behind(board: Board, lane: LaneState, pieces: list[Piece], head: int, now_s: float) -> int:
    p = lane.fastest
    curve, factor, merge = board.paths[p].curve, lane.correction.tail[p], lane.merge[p]
    full_s = curve.tail[merge] * factor
    start = bisect_left(pieces, (pieces[head][0], now_s + full_s))
    if pieces[head][1] - now_s >= full_s or start == len(pieces):
        return head
    small = max(1, curve.rows_safe_within((pieces[head][1] - now_s) / factor))
    large = min(merge, board.queue.rows - sum(piece[5] for piece in pieces[:start]))
    pays = large > 0 and small / curve.median[small] < late.PAYS * large / curve.median[large]
    return start if pays else head


def batch(board: Board, lane: LaneState, pieces: list[Piece], start: int, now_s: float) -> Choice | None:
    piece = pieces[start]
    query, rows = piece[3], piece[5]
    left = query.deadline_s - now_s - board.front_s(query)
    if left <= 0:
        return None
    order = lane.order
    if query.path >= 0 and rows < query.rows:
        kind = board.paths[query.path].representation
        order = [p for p in lane.paths if board.paths[p].representation == kind]
    elif query.required:
        order = [p for p in lane.paths if board.paths[p].value >= board.best]
    crowded = False
    for p in order:
        last = p == order[-1]
        if crowded and not last and not board.paths[p].efficient:
            continue
        found = formed(board, lane, p, pieces, start, left, last)
        if found is not None:
            taken, batch_rows = found
            if last or rest_is_feasible(board, lane, p, pieces, start, len(taken), batch_rows, now_s):
                return p, taken, start, batch_rows, reason(board, p, query)
            crowded = True
    if order:
        p = order[-1]
        median = board.paths[p].curve.median
        if rows <= lane.most[p] and median[rows] * lane.correction.median[p] <= left:
            return p, [piece], start, rows, reason(board, p, query)
    return None


def formed(
    board: Board, lane: LaneState, p: int, pieces: list[Piece], start: int, left: float, last: bool
) -> tuple[list[Piece], int] | None:
    path, front = board.paths[p], board.front
    tail = path.curve.tail
    first = pieces[start]
    rows = first[5]
    factor = lane.correction.tail[p] if last else lane.correction.safe[p]
    allowed = left / factor
    if rows > lane.most[p] or tail[rows] > allowed:
        part = part_of(board, lane, p, rows, allowed)
        return ([first], part) if part else None
    merge = min(lane.merge[p], -(-board.queue.rows // peers(board, lane)))
    until_s = first[3].deadline_s - left
    taken = [first]
    for piece in pieces[start + 1 :]:
        query = piece[3]
        until_s += front.answer_s + front.answer_row_s * piece[5]
        allowed = min(allowed, (query.deadline_s - until_s) / factor)
        of_another_kind = query.path >= 0 and piece[5] < query.rows
        if (
            query.settled
            or rows + piece[5] > merge
            or tail[rows + piece[5]] > allowed
            or (query.required and path.value < board.best)
            or of_another_kind
        ):
            break
        taken.append(piece)
        rows += piece[5]
    return taken, rows


def part_of(board: Board, lane: LaneState, p: int, rows: int, allowed: float) -> int:
    curve, most = board.paths[p].curve, lane.most[p]
    fits = min(most, curve.rows_safe_within(allowed))
    if fits < 1:
        return 0
    idle = peers(board, lane)
    parts = -(-rows // fits)
    if parts <= idle:
        return -(-rows // parts)
    each = -(-rows // idle)
    turns = -(-each // most)
    part = -(-each // turns)
    return part if turns * curve.tail[part] <= allowed else 0


def rest_is_feasible(
    board: Board,
    lane: LaneState,
    p: int,
    pieces: list[Piece],
    start: int,
    count: int,
    rows: int,
    now_s: float,
) -> bool:
    curve, observed, rate, spare = board.paths[p].curve, board.observed, board.total_rate, board.caution.spare
    took_s = curve.median[rows] * lane.correction.median[p]
    coming = observed.rows_s * took_s
    if coming:
        coming += late.DEVIATIONS * sqrt(observed.queries_s * took_s * observed.mean_square)
    waiting = board.queue.rows - rows
    if waiting + coming > spare * board.limits.max_queued_rows:
        return False
    done = busy(board, lane, now_s) + took_s * lane.rate * board.past_front
    backlog_s = (done + waiting + coming) / rate + board.own_s(int(observed.mean_rows), waiting + coming)
    if backlog_s > min(spare * observed.budget_s, observed.budget_s - board.reserve_s):
        return False
    if start or count == len(pieces):
        return True
    free_s = 0.0
    if peers(board, lane) == 1:
        free_s = curve.tail[rows] * lane.correction.tail[p]
        for other in others(board, lane):
            if other.device == lane.device and other.flight is not None:
                free_s = min(free_s, max(0.0, other.free_s - now_s))
    head, middle, final = pieces[count], pieces[(count + len(pieces)) // 2], pieces[-1]
    query = head[3]
    left = query.deadline_s - now_s
    kept_s = late.KEPT * (query.deadline_s - query.arrival_s)
    if free_s + board.own_s(head[5], waiting) > min(spare * left, left - kept_s):
        return False
    left = middle[3].deadline_s - now_s
    if (done + waiting / 2) / rate + board.own_s(middle[5], waiting) > spare * left:
        return False
    left = final[3].deadline_s - now_s
    return (done + waiting) / rate + board.own_s(final[5], waiting) <= spare * left


def reason(board: Board, p: int, query: Query) -> Reason:
    if board.paths[p].value >= board.best:
        return Reason.BEST
    if query.failed:
        return Reason.FAILURE
    budget_s = query.deadline_s - query.arrival_s - board.front_s(query)
    best = [(lane, p) for lane in board.usable for p in lane.paths if board.paths[p].value >= board.best]
    for lane, p in best:
        curve = board.paths[p].curve
        factors = lane.correction.tail if p == lane.fastest else lane.correction.safe
        if query.rows <= curve.rows and curve.tail[query.rows] * factors[p] <= budget_s:
            return Reason.LOAD
    lost = [
        lane
        for lane in board.lanes
        if any(board.paths[p].value >= board.best for p in lane.paths)
        and (not lane.alive or lane.breaker.broken)
    ]
    return Reason.FAILURE if lost and not best else Reason.DEADLINE


def committed(board: Board, now_s: float) -> float:
    rows = 0.0
    for lane in board.usable:
        if lane.flight is not None:
            rows += max(0.0, lane.free_s - now_s) * lane.rate
    return rows * board.past_front


def admit(board: Board, query: Query, now_s: float) -> float:
    """Of a plan with several lanes, or one that is not inline."""
    pieces = board.queue.pieces
    left = query.deadline_s - now_s - board.front_s(query)
    executing = committed(board, now_s)

    def over_s(ahead: int) -> float:
        backlog_s = door.MARGIN * (ahead + executing) / board.total_rate
        return backlog_s + board.own_s(query.rows, ahead) - left

    if query.required:
        best_s = door.MARGIN * executing / board.total_rate + board.best_own_s(query.rows) - left
        if best_s > 0:
            return best_s
    at = bisect_left(pieces, (query.priority or LOWEST, query.deadline_s, inf))
    whole_s = over_s(board.queue.rows)
    if whole_s <= 0 or not pieces:
        return whole_s
    kept_s = by_share_s(board, query, executing) - left
    if kept_s <= 0 or at == len(pieces):
        return min(whole_s, kept_s)
    behind_s = door.MARGIN * (board.queue.rows + query.rows + executing) / board.total_rate
    if behind_s > pieces[-1][3].deadline_s - now_s:
        return min(whole_s, kept_s)
    return min(over_s(sum(piece[5] for piece in pieces[:at])), kept_s)


def by_share_s(board: Board, query: Query, executing: float) -> float:
    """Seconds until it is done if lower levels have only their share; infinity if it is not of them."""
    pieces = board.queue.pieces
    if pieces[0][0] >= (query.priority or LOWEST):
        return inf
    lower = [piece for piece in pieces if piece[0] > pieces[0][0] and piece[1] <= query.deadline_s]
    ahead = sum(piece[5] for piece in lower)
    missing_s = (ahead + query.rows) / board.total_rate - board.queue.credit_s / len(board.usable)
    share_s = ahead / board.total_rate + max(0.0, missing_s) / (SHARE / (1 - SHARE))
    own = board.best_own_s(query.rows) if query.required else board.own_s(query.rows, 0)
    return door.MARGIN * executing / board.total_rate + door.MARGIN * share_s + own


def own_s(board: Board, rows: int, required: bool = False) -> float:
    """As the corrections are now; infinity if the highest value is required and no lane has it."""
    times = [inf]
    for lane in board.usable:
        own = [p for p in lane.paths if board.paths[p].value >= board.best] if required else [lane.fastest]
        for p in own[:1]:
            lanes = sum(other.device == lane.device for other in board.usable)
            parts = min(lanes, max(1, rows // lane.merge[p]))
            seconds = in_batches(board.paths[p].curve.tail, -(-rows // parts), lane.most[p])
            times.append(seconds * lane.correction.tail[p])
    return min(times)


class Correction:
    """As `polyrec.planner.routing.latency.correction.Correction`, from all that was ever observed. All lists
    are by path."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        paths = range(len(curves))
        self.curves = curves
        self.bias, self.wider, self.known = [0.0 for _ in paths], [0.0 for _ in paths], [0.0 for _ in paths]
        self.batches = [0 for _ in paths]
        self.recent = [0.0, 0.0, 0.0]
        self.shift = 0.0
        self.new = 0
        self.window = 0
        self.begun_s = 0.0
        self.usual = [1 for _ in paths]
        self.residuals: list[tuple[int, int, float]] = []
        """(window, path, logarithm of observed over profiled seconds)"""
        self.delays: list[tuple[int, float]] = []

    def observe(self, path: int, rows: int, took_s: float) -> None:
        curve = self.curves[path]
        ratio = max(took_s, correction.LEAST_S) / curve.median[rows]
        residual, spread, bias = log(ratio), curve.spread[rows], self.bias[path]
        noise = max(correction.NOISE, spread)
        self.batches[path] += 1
        if self.batches[path] <= correction.FIRST_BATCHES and residual - bias > noise:
            return
        self.new += 1
        self.residuals.append((self.window, path, residual))
        if residual > bias + spread:
            self.delays.append((self.window, took_s - curve.tail[rows] * exp(bias)))
        self.recent = [*self.recent[1:], residual - bias]
        middle = sorted(self.recent)[1]
        self.shift = middle if middle >= noise else 0.0
        off = residual - bias - self.shift
        step, weight = correction.BIAS_STEP, correction.BIAS_WEIGHT
        if self.known[path] < correction.NEW:
            weight = 1 / (self.known[path] + 2)
            step = correction.NEW_STEP / (self.known[path] + 2)
        self.known[path] += 1
        bias += max(-step, min(step, weight * off))
        self.bias[path] = max(-correction.MOST_BIAS, min(correction.MOST_BIAS, bias))
        above = off - spread > self.wider[path]
        up = correction.TAIL_STEP * (correction.TAIL_QUANTILE if above else correction.TAIL_QUANTILE - 1)
        self.wider[path] = max(correction.LEAST_TAIL, min(correction.MOST_TAIL, self.wider[path] + up))

    def tick(self, now_s: float, passed_s: float, rows: int) -> None:
        if self.new < 3:
            kept = exp(-passed_s / correction.SHIFT_MEMORY_S)
            self.shift *= kept
            self.recent = [residual * kept for residual in self.recent]
        self.new = 0
        if now_s - self.begun_s >= correction.WINDOW_S:
            self.window += 1
            self.begun_s = now_s
        for path, curve in enumerate(self.curves):
            self.usual[path] = min(rows, curve.rows)
            self.wider[path] *= exp(-passed_s / correction.TAIL_MEMORY_S)
            if not self.lately(path):
                self.bias[path] *= exp(-passed_s / correction.BIAS_MEMORY_S)
                self.known[path] *= exp(-passed_s / correction.BIAS_MEMORY_S)

    def lately(self, path: int) -> list[float]:
        return [r for window, p, r in self.residuals if p == path and window >= self.window - 1]

    def longest(self, path: int) -> float:
        """Seconds of the longest prediction for a usual batch, by the longest delay of the lane."""
        delay_s = max((d for window, d in self.delays if window >= self.window - 1), default=0.0)
        tail_s = self.curves[path].tail[self.usual[path]]
        return exp(self.bias[path]) * tail_s + correction.MARGIN * delay_s

    @property
    def median(self) -> list[float]:
        return [
            min(exp(self.bias[p] + self.shift), self.longest(p) / curve.median[self.usual[p]])
            for p, curve in enumerate(self.curves)
        ]

    def bounded(self, p: int, seconds: float, most_s: float) -> float:
        """Seconds of a usual batch: at most that, and what was seen of the path; at least the median."""
        curve, rows = self.curves[p], self.usual[p]
        if len(own := self.lately(p)) >= correction.ENOUGH:
            most_s = min(most_s, correction.MARGIN * exp(max(own)) * curve.median[rows])
        return max(min(seconds, most_s), self.median[p] * curve.median[rows])

    def tail_s(self, p: int) -> float:
        return exp(self.bias[p] + self.shift + self.wider[p]) * self.curves[p].tail[self.usual[p]]

    @property
    def tail(self) -> list[float]:
        return [
            self.bounded(p, self.tail_s(p), self.longest(p)) / curve.tail[self.usual[p]]
            for p, curve in enumerate(self.curves)
        ]

    @property
    def safe(self) -> list[float]:
        found = []
        for p, curve in enumerate(self.curves):
            safe_s = self.bounded(p, min(self.tail_s(p), self.longest(p)) * curve.sure, inf)
            found.append(max(safe_s / curve.tail[self.usual[p]], self.tail[p]))
        return found
