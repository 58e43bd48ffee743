"""The board: what every policy sees. Paths with their tables, lanes with their corrections and what they are
doing, the queue, what was observed of the traffic. The router keeps it; policies read it.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec, LaneState
from polyrec.planner.routing.lanes.path import PathSpec, PathState
from polyrec.planner.routing.latency.front_cost import Front
from polyrec.planner.routing.latency.latency_table import Curve
from polyrec.planner.routing.latency.service_time import Own, Taker, own_s
from polyrec.planner.routing.observed_traffic import Observed
from polyrec.planner.routing.path_option import options
from polyrec.planner.routing.policies.loss_backoff import Caution
from polyrec.planner.routing.policies.prices import Prices, price
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.queue import Queue

LOOP_HOLD_S = 0.005
"""An inline lane holds the event loop no longer than this if a smaller batch can do."""
FASTER = 2.0
"""A lane of the same device counts as faster if it is that many times as fast."""
RARELY = 8.0
"""How rarely a backlog may outgrow what is kept for bursts: once in exp(8), about 3,000."""
UNSURE = 1.05
"""Rates are observed and models are models: load is taken to be that much higher."""
SLACK_IN_VALUE = 1e-6
"""Paths whose value less price differs by no more than that many correct predictions a row tie."""
INF = float("inf")
BATCHES_HELD = 2
"""A query waits for the batch under way and its own: each may be held up like the last seconds' worst."""
BATCH_SHARE = 0.4
"""A merged batch takes at most this share of the usual budget: it delays whatever comes behind it."""


class Board:
    """All of it. usable: lanes to count on, those that are closed, or if there are none all that are alive.

    total_rate: their rows/s on their fastest paths; least_s: the shortest way to an answer that was really
    seen. broken: a lane that has a path of the highest value is dead or has lost work. reserve_s: backlog,
    in seconds, that random arrivals alone may add before it shrinks again, as in a queue under heavy
    traffic: log(1 / P) x variance a second / (2 x spare capacity); at least what every lane was lately held
    up for, if queries come in that time. best: the highest value of a path; allowed: paths that the policy
    uses at all. alone: the usable lane, if there is but one and it is inline. specs: paths and lanes as
    given.

    Kept for decisions: tops: (most rows, tail by rows, what the lane multiplies that by, path) of paths of
    the highest value on usable lanes. own, merge: for `own_s`. past_front: total_rate over the rate of the
    lanes alone: work in a lane has passed the front, which may be what limits total_rate. ends_s: none of
    the batches under way should be over later.
    """

    __slots__ = (
        "allowed", "alone", "begun_s", "best", "broken", "caution", "devices", "ends_s", "front", "lanes",
        "least_s", "limits", "max_queued_rows", "merge", "observed", "own", "past_front", "paths", "prices",
        "queue", "reserve_s", "routing", "specs", "tops", "total_rate", "usable",
    )  # fmt: skip

    def __init__(
        self,
        paths: Sequence[PathSpec],
        lanes: Sequence[LaneSpec],
        routing: Routing,
        limits: Limits,
        now_s: float,
    ) -> None:
        self.specs = tuple(paths), tuple(lanes)
        self.limits = limits
        self.max_queued_rows = limits.max_queued_rows
        self.begun_s = now_s
        self.devices = list(dict.fromkeys(lane.device for lane in lanes))
        representations = list(dict.fromkeys(_representation(p.name) for p in paths))
        size = max(limits.max_batch_rows, limits.max_request_rows)
        self.paths = [
            PathState(
                i,
                p,
                self.devices.index(p.device),
                representations.index(_representation(p.name)),
                Curve(p.latency, size),
            )
            for i, p in enumerate(paths)
        ]
        curves = [path.curve for path in self.paths]
        self.lanes = [
            LaneState(
                i,
                lane,
                self.devices.index(lane.device),
                [p for p, path in enumerate(paths) if path.device == lane.device],
                curves,
            )
            for i, lane in enumerate(lanes)
        ]
        self.queue = Queue()
        self.front = Front(routing)
        self.caution = Caution()
        self.observed = Observed(now_s)
        self.total_rate = 0.0
        self.prices: Prices | None = None
        self.least_s = 0.0
        self.reserve_s = 0.0
        self.own = Own([])
        self.merge = 1
        self.ends_s = 0.0
        self.past_front = 1.0
        self.usable: list[LaneState] = []
        self.tops: list[tuple[int, list[float], list[float], int]] = []
        self.alone: LaneState | None = None
        self.broken = False
        self.allowed: frozenset[int] = frozenset(range(len(paths)))
        self.set_routing(routing)

    def set_routing(self, routing: Routing) -> None:
        """Takes over weights. What the front costs is known better by now."""
        self.routing = routing
        for path in self.paths:
            path.value = path.accuracy * routing.weights.get(path.name, 1.0)
        self.best = max((p.value for p in self.paths), default=0.0)
        self.refresh()

    def refresh(self) -> None:
        """Recomputes what follows from corrections, breakers and the usual budget. Off the request path."""
        batch_s = BATCH_SHARE * self.observed.budget_s
        batch_rows = self.limits.max_batch_rows
        for lane in self.lanes:
            factors, tails = lane.correction.median, lane.correction.tail
            for p in lane.paths:
                curve = self.paths[p].curve
                most = min(batch_rows, curve.rows)
                if lane.inline:
                    most = min(most, max(1, curve.rows_within(LOOP_HOLD_S / factors[p])))
                lane.most[p] = most
                pays = min(curve.efficient_rows, curve.rows_safe_within(batch_s / tails[p]))
                lane.merge[p] = min(most, max(1, pays))
        for path in self.paths:
            path.row_s = INF
        for lane in self.lanes:
            if lane.alive:
                for p in lane.paths:
                    row_s = self._row_s(lane, p)
                    if row_s < self.paths[p].row_s:
                        self.paths[p].row_s = row_s
        self.count()

    def _row_s(self, lane: LaneState, path: int, most_rows: int | None = None) -> float:
        """Seconds a row, in batches of as many rows as pay, or of no more than most_rows."""
        rows = lane.merge[path]
        if most_rows is not None and most_rows < rows:
            rows = most_rows
        curve = self.paths[path].curve
        seconds = curve.median[rows] * curve.mean * lane.correction.median[path] / rows
        if lane.inline:
            seconds += self.front.row_s + self.front.query_s / self.observed.mean_rows
        return seconds

    def count(self) -> None:
        """Which lanes can be counted on, what they do together, and what their time is worth."""
        self.usable = [lane for lane in self.lanes if lane.usable and lane.paths] or [
            lane for lane in self.lanes if lane.alive and lane.paths
        ]
        tops = self._price()
        for lane in self.lanes:
            self._order(lane, tops[lane.device])
        self.total_rate = self._together()
        self.usable = [lane for lane in self.usable if lane.order]
        for lane in self.lanes:
            lane.others = [other for other in self.usable if other is not lane]
            self._compare(lane)
        best = {p.index: p.curve for p in self.paths if p.value >= self.best}
        self.tops = [
            (
                best[p].rows,
                best[p].tail,
                lane.correction.tail if p == lane.fastest else lane.correction.safe,
                p,
            )
            for lane in self.usable
            for p in lane.paths
            if p in best
        ]
        seen = [
            self.paths[p].curve.median[1] * lane.correction.quickest[p]
            for lane in self.usable
            for p in lane.order
        ]
        self.least_s = min(seen, default=0.0) + self.front.answer_s + self.front.answer_row_s
        self.broken = any(
            not lane.alive or lane.breaker.broken for lane in self.lanes if any(p in best for p in lane.paths)
        )
        self.alone = self.usable[0] if len(self.usable) == 1 and self.usable[0].inline else None
        self.own = Own(self._takers())
        lanes_rate = sum(lane.rate for lane in self.usable)
        self.past_front = self.total_rate / lanes_rate if lanes_rate else 1.0
        self.merge = max((lane.merge[lane.fastest] for lane in self.usable), default=1)

    def _together(self) -> float:
        """Rows/s of all usable lanes, and of the front; and from that what has to be kept for bursts."""
        rate = sum(lane.rate for lane in self.usable)
        if rate and not any(lane.inline for lane in self.usable):
            rate = 1 / max(1 / rate, self.front.row_s + self.front.query_s / self.observed.mean_rows)
        used = UNSURE * self.observed.high_rows_s / rate if rate else 1.0
        variance = self.observed.variance_s / (rate * rate) if rate else 0.0
        self.reserve_s = RARELY / 2 * variance / (1 - used) if used < 1 else INF
        delay_s = min((lane.correction.delay_s for lane in self.usable), default=0.0)
        held_s = BATCHES_HELD * delay_s
        if held_s > self.reserve_s and delay_s * self.observed.queries_s >= 1:
            self.reserve_s = held_s
        return rate

    def _price(self) -> list[float]:
        """Prices at the observed rate. Returns for each device the highest value that is worth its price."""
        lanes = [0.0] * len(self.devices)
        for lane in self.usable:
            lanes[lane.device] += 1.0
        paths: list[list[PathState]] = [[] for _ in self.devices]
        for path in self.paths:
            if path.index in self.allowed and path.value > 0 and path.row_s < INF:
                paths[path.device].append(path)
        options = [[(p.value, p.row_s) for p in own] for own in paths]
        self.prices = prices = price(self.observed.rows_s, lanes, options)
        tops = []
        for d, own in enumerate(paths):
            best = max((prices.earns(d, p.value, p.row_s) for p in own), default=0.0)
            tops.append(
                max(
                    (p.value for p in own if prices.earns(d, p.value, p.row_s) >= best - SLACK_IN_VALUE),
                    default=0.0,
                )
            )
            for p in own:
                p.efficient = not any(
                    a.row_s < p.row_s < b.row_s
                    and p.value < a.value + (b.value - a.value) * (p.row_s - a.row_s) / (b.row_s - a.row_s)
                    for a in own
                    for b in own
                )
        return tops

    def _order(self, lane: LaneState, top: float) -> None:
        usable = [p for p in lane.paths if p in self.allowed and self.paths[p].value > 0]
        # Which path is faster may depend on the batch: as large as they are, not as large as they may be.
        usual = max(1, round(lane.usual))
        row_s = {p: self._row_s(lane, p, usual) for p in usable}
        usable.sort(key=lambda p: (-self.paths[p].value, row_s[p]))
        lane.order = []
        for p in usable:
            if self.paths[p].value <= top and (not lane.order or row_s[p] < row_s[lane.order[-1]]):
                lane.order.append(p)
        lane.options = options(lane.order, self.paths, lane.most, lane.merge)
        lane.fastest = lane.order[-1] if lane.order else -1
        lane.rate = 1 / self._row_s(lane, lane.fastest) if lane.order else 0.0

    def _compare(self, lane: LaneState) -> None:
        """Which lanes are much faster than this one, and at what rate they would do without it."""
        assert self.prices is not None
        lane.faster = []
        if not lane.order:
            return
        earns = max(
            self.prices.earns(lane.device, self.paths[p].value, self.paths[p].row_s) for p in lane.order
        )
        paid = earns >= self.prices.row - SLACK_IN_VALUE
        for other in lane.others:
            factor = FASTER if other.device == lane.device else 1.0
            if other.rate > factor * lane.rate:
                at = other.rate
                if paid and other.device != lane.device:
                    at = 1 / self._row_s(other, other.order[0])
                lane.faster.append((other, at))

    def front_s(self, query: Query) -> float:
        """What the front will spend on the answer."""
        return self.front.answer_s + self.front.answer_row_s * query.rows

    def committed_rows(self, now_s: float) -> float:
        """What executes now, in rows at total_rate."""
        rows = 0.0
        for lane in self.usable:
            left = lane.free_s - now_s
            if left > 0 and lane.flight is not None:
                rows += left * lane.rate
        return rows * self.past_front

    def own_s(self, rows: int, queued: float) -> float:
        """Seconds at the tail of a query of `rows` rows on the fastest device, in a batch with those queued.

        Split if it is large. Remembered between refreshes.
        """
        size = rows + int(queued)
        if size > self.merge:
            size = self.merge
        return self.own[size if size > rows else rows]

    def best_own_s(self, rows: int) -> float:
        """As `own_s`, on paths of the highest value, alone; infinity if no lane has one."""
        return own_s(self._takers(required=True), rows)

    def _takers(self, required: bool = False) -> list[Taker]:
        """Each usable lane on its fastest path, or on one of the highest value if it has one."""
        lanes = [0] * len(self.devices)
        for lane in self.usable:
            lanes[lane.device] += 1
        found = []
        for lane in self.usable:
            p = lane.fastest
            if required:
                p = next((p for p in lane.paths if self.paths[p].value >= self.best), -1)
            if p >= 0:
                tail, factors = self.paths[p].curve.tail, lane.correction.tail
                found.append((tail, factors, p, lane.merge[p], lane.most[p], lanes[lane.device]))
        return found


def _representation(path: str) -> str:
    return path.partition("@")[0]
