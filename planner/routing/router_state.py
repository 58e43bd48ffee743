"""The router's state, on which all routing decisions are based; the router updates it and policies read it.

It starts from the plan's paths, lanes and limits, and changes with latency corrections, observed traffic and
breakers. `refresh` derives capacity, prices and each lane's usable paths from these, off the request path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.lane import FasterLane, LaneSpec, LaneState
from polyrec.planner.routing.lanes.path import PathSpec, PathState
from polyrec.planner.routing.lanes.path_order import large_order, large_path, usual_order
from polyrec.planner.routing.lanes.row_times import RowTimes
from polyrec.planner.routing.latency.front_cost import FrontCost
from polyrec.planner.routing.latency.latency_table import LatencyTable
from polyrec.planner.routing.latency.read_times import ReadTimes
from polyrec.planner.routing.latency.service_time import LanePath, ServiceTimes, service_time_s
from polyrec.planner.routing.observed_traffic import ObservedTraffic
from polyrec.planner.routing.path_option import path_options
from polyrec.planner.routing.policies.loss_backoff import LossBackoff
from polyrec.planner.routing.policies.near_paths import compare_speeds
from polyrec.planner.routing.prices import VALUE_TOLERANCE, Prices, is_efficient, solve_prices
from polyrec.planner.routing.queue import Queue

MIN_INLINE_BATCH_S, MAX_INLINE_BATCH_S = 0.005, 0.02
"""Bounds on how long an inline lane blocks the event loop if a smaller batch is possible. No requests are
read meanwhile, but each part of a split query costs a batch's fixed cost again."""
FASTER_FACTOR = 2.0
"""A lane counts as faster than another if its rate is at least this many times as high."""
OVERFLOW_EXPONENT = 8.0
"""The backlog may exceed the reserve for bursts with probability exp(-8), about 1 in 3,000."""
LOAD_MARGIN = 1.05
"""Safety factor on the observed load, since rates and latencies are estimates."""
INF = float("inf")
MIN_FIXED_COSTS = 2.0
"""A limited batch may take at least this many times a batch of one row."""
CROWDED = 0.95
"""Utilization from which on rejections are unavoidable."""
DISTURBED = 0.1
"""Share of waiting for a CPU from which on pauses are due to other programs rather than to batches."""
BATCH_SHARE = 0.4
"""Maximum share of the usual budget that a merged batch may take, since it delays all later arrivals."""


LanePaths = Callable[[LaneState], Iterable[int]]
"""Returns some of a lane's paths, by index."""


class BestPath(NamedTuple):
    """A path of the highest value on a usable lane."""

    lane: LaneState
    path: PathState


class RouterState:
    """Paths, lanes, queue and observations, and the values derived from them.

    path_specs, lane_specs: as passed by the caller; `paths` and `lanes` have their states, in the same order.
    usable: lanes with a closed breaker or, if there are none, all live lanes.
    sole_inline_lane: the only usable lane if it is inline, otherwise None.
    best_lane_failed: whether a lane with a path of the highest value is dead or has lost work.
    total_rate: rows/s that the usable lanes on their fastest paths, and the front, can do.
    utilization: of the lanes, if everything were executed on the fastest paths.
    front_factor: total_rate over the lanes' own rate, for work that has already passed the front.
    service_times: service times of a query, as corrected now.
    alone_times, best_alone_times: the same at the lanes' undisturbed speed, on all paths and on those of the
        highest value. Without a usable lane they keep their values.
    max_merge_rows: the largest `merge_rows` of a usable lane on its fastest path.
    min_latency_s: shortest time to an answer ever observed.
    others_budget_s: shortest usual budget of other models that share the lanes, as a batch delays their
        queries too; infinity without other models.
    best_value, best_paths: the highest value of all paths, and the paths that have it by usable lane.
    allowed_paths: indexes of the paths that the policy may use.
    reserve_s: backlog in seconds that random arrivals alone may add before it shrinks again. By the
        heavy-traffic approximation of a queue's tail: log(1 / P) x variance per second / (2 x spare
        capacity).
    """

    __slots__ = (
        "allowed_paths", "alone_times", "best_alone_times", "best_lane_failed", "best_paths", "best_value",
        "devices", "front", "front_factor", "lane_specs", "lanes", "limits",
        "loss_backoff", "max_merge_rows", "min_latency_s", "observed", "others_budget_s",
        "path_specs", "paths", "prices", "queue", "reads", "reserve_s", "routing", "row_times",
        "service_times", "sole_inline_lane", "start_s", "total_rate", "usable", "utilization",
    )  # fmt: skip

    def __init__(
        self,
        paths: Sequence[PathSpec],
        lanes: Sequence[LaneSpec],
        routing: Routing,
        limits: Limits,
        now_s: float,
    ) -> None:
        self.path_specs, self.lane_specs = tuple(paths), tuple(lanes)
        self.limits = limits
        self.start_s = now_s
        self.devices = list(dict.fromkeys(lane.device for lane in lanes))
        representations = list(dict.fromkeys(_representation(p.name) for p in paths))
        table_rows = max(limits.max_batch_rows, limits.max_request_rows)
        self.paths = [
            PathState(
                i,
                p,
                self.devices.index(p.device),
                representations.index(_representation(p.name)),
                LatencyTable(p.latency, table_rows),
            )
            for i, p in enumerate(paths)
        ]
        latencies = [path.latency for path in self.paths]
        self.lanes = [
            LaneState(
                i,
                lane,
                self.devices.index(lane.device),
                [p for p, path in enumerate(paths) if path.device == lane.device],
                latencies,
            )
            for i, lane in enumerate(lanes)
        ]
        self.queue = Queue()
        self.reads = ReadTimes()
        self.front = FrontCost(routing)
        self.loss_backoff = LossBackoff()
        self.observed = ObservedTraffic(now_s)
        self.row_times = RowTimes(self.paths, self.front, self.observed)
        self.others_budget_s = INF
        self.total_rate = 0.0
        self.prices: Prices | None = None
        self.min_latency_s = 0.0
        self.reserve_s = 0.0
        self.service_times = self.alone_times = self.best_alone_times = ServiceTimes([])
        self.max_merge_rows = 1
        self.front_factor = 1.0
        self.utilization = 0.0
        self.usable: list[LaneState] = []
        self.best_paths: list[BestPath] = []
        self.sole_inline_lane: LaneState | None = None
        self.best_lane_failed = False
        self.allowed_paths: frozenset[int] = frozenset(range(len(paths)))
        self.set_routing(routing)

    def set_routing(self, routing: Routing) -> None:
        """Applies new weights. Keeps the observed cost of the front."""
        self.routing = routing
        for path in self.paths:
            path.value = path.base_value * routing.weights.get(path.name, 1.0)
        self.best_value = max((p.value for p in self.paths), default=0.0)
        self.refresh()

    def refresh(self) -> None:
        """Recomputes all values derived from corrections, breakers and the usual budget."""
        batch_s = BATCH_SHARE * min(self.observed.budget_s, self.others_budget_s)
        is_shared = self.others_budget_s < INF
        inline_s = min(max(MIN_INLINE_BATCH_S, batch_s), MAX_INLINE_BATCH_S)
        batch_rows = self.limits.max_batch_rows
        for lane in self.lanes:
            factors = lane.correction.undisturbed
            for p in lane.paths:
                latency = self.paths[p].latency
                max_rows = min(batch_rows, latency.rows)
                if lane.inline or is_shared:
                    # a batch that is mostly fixed cost would block the loop no less often
                    limit_s = max(inline_s / factors[p], MIN_FIXED_COSTS * latency.median[1])
                    max_rows = min(max_rows, max(1, latency.max_rows_at_median(limit_s)))
                lane.max_rows[p] = max_rows
                efficient = min(latency.efficient_rows, latency.max_rows_at_tail(batch_s / factors[p]))
                lane.merge_rows[p] = min(max_rows, max(1, efficient))
        for path in self.paths:
            path.row_s = INF
        for lane in self.lanes:
            if lane.alive:
                for p in lane.paths:
                    row_s = self.row_times.elapsed_s(lane, p)
                    if row_s < self.paths[p].row_s:
                        self.paths[p].row_s = row_s
        self.update_lanes()

    def update_lanes(self) -> None:
        """Recomputes the usable lanes, their paths, their capacity and the prices of their time.

        Each step needs those before: prices exclude paths of a lane, its paths give its rate, and all rates
        give the utilization. Only `_order_paths` reads values of the last call (rate and utilization).
        """
        self.usable = [lane for lane in self.lanes if lane.usable and lane.paths] or [
            lane for lane in self.lanes if lane.alive and lane.paths
        ]
        max_values = self._update_prices()
        for lane in self.lanes:
            self._order_paths(lane, max_values[lane.device])
        self.total_rate = self._update_rate()
        self.usable = [lane for lane in self.usable if lane.order]
        for lane in self.lanes:
            lane.others = [other for other in self.usable if other is not lane]
            self._find_faster_lanes(lane)
        self._find_best_paths()
        observed_s = [
            self.paths[p].latency.median[1] * lane.correction.quickest[p]
            for lane in self.usable
            for p in lane.order
        ]
        self.min_latency_s = min(observed_s, default=0.0) + self.front.answering_s(1)
        sole = self.usable[0] if len(self.usable) == 1 else None
        self.sole_inline_lane = sole if sole is not None and sole.inline else None
        lane_paths = self._lane_paths(_last_of)
        self.service_times = ServiceTimes(lane_paths)
        if lane_paths:  # otherwise keep the old ones, or no query would count as possible demand
            self.alone_times = ServiceTimes(self._lane_paths(self._allowed_of, undisturbed=True))
            self.best_alone_times = ServiceTimes(self._lane_paths(self._best_of, undisturbed=True))
        lanes_rate = sum(lane.rate for lane in self.usable)
        self.front_factor = self.total_rate / lanes_rate if lanes_rate else 1.0
        self.max_merge_rows = max((lane.merge_rows[lane.fastest] for lane in self.usable), default=1)

    def _find_best_paths(self) -> None:
        """Sets the paths of the highest value by usable lane, and whether a lane with one failed."""
        best = {p.index: p for p in self.paths if p.value >= self.best_value}
        self.best_paths = [BestPath(lane, best[p]) for lane in self.usable for p in lane.paths if p in best]
        self.best_lane_failed = any(
            not lane.alive or lane.breaker.broken for lane in self.lanes if any(p in best for p in lane.paths)
        )

    def _update_rate(self) -> float:
        """Returns the capacity of lanes and front in rows/s, and sets what is reserved by its utilization."""
        rate = sum(lane.rate for lane in self.usable)
        if not any(lane.inline for lane in self.usable):
            front_s = self.front.row_s + self.front.query_s / self.observed.mean_rows
            rate = 1 / front_s if front_s * rate > 1 else rate
        utilization = LOAD_MARGIN * self.observed.high_rows_s / rate if rate else 1.0
        variance = self.observed.variance_s / (rate * rate) if rate else 0.0
        self.reserve_s = OVERFLOW_EXPONENT / 2 * variance / (1 - utilization) if utilization < 1 else INF
        fastest = min((self.paths[lane.fastest].value for lane in self.usable if lane.order), default=0.0)
        gain = 1 - fastest / self.best_value if self.best_value > 0 else 0.0
        self.utilization = utilization
        self.loss_backoff.set_load(utilization, gain)
        return rate

    def _update_prices(self) -> list[float]:
        """Sets prices at the observed rate. Returns by device the highest path value worth its price."""
        lanes = [0.0] * len(self.devices)
        for lane in self.usable:
            lanes[lane.device] += 1.0
        paths: list[list[PathState]] = [[] for _ in self.devices]
        for path in self.paths:
            if path.index in self.allowed_paths and path.value > 0 and path.row_s < INF:
                paths[path.device].append(path)
        costs = [[(p.value, p.row_s) for p in on_device] for on_device in paths]
        for on_device, device_costs in zip(paths, costs, strict=True):
            for p in on_device:
                p.efficient = is_efficient(p.value, p.row_s, device_costs)
        self.prices = prices = solve_prices(self.observed.rows_s, lanes, costs)
        return [prices.highest_value(d, device_costs) for d, device_costs in enumerate(costs)]

    def _order_paths(self, lane: LaneState, max_value: float) -> None:
        """Sets the paths of the lane's usual and large queries, its fastest path and its rate."""
        paths, times = self.paths, self.row_times
        usable = [p for p in lane.paths if p in self.allowed_paths and 0 < paths[p].value <= max_value]
        usual_rows = max(1, round(lane.mean_batch_rows))
        row_s = {p: times.elapsed_s(lane, p, usual_rows) for p in usable}
        full_row_s = {p: times.elapsed_s(lane, p) for p in usable}
        lane_rows_s, backoff = self.utilization * lane.rate, self.loss_backoff
        lane.order = usual_order(paths, usable, row_s, full_row_s, lane_rows_s, backoff.avoidable_share)
        lane.options = path_options(lane.order, paths, lane.max_rows, lane.merge_rows)
        budget_s = self.observed.budget_s
        compare_speeds(
            lane.options, paths, row_s, full_row_s, usual_rows, self.utilization, budget_s, backoff
        )
        lane.fastest = lane.order[-1] if lane.order else -1
        self._set_large_options(lane)
        lane.rate = times.rate(lane) if lane.order else 0.0

    def _set_large_options(self, lane: LaneState) -> None:
        """Sets from how many rows on a query has other options than usual ones, and which."""
        lane.large_rows, lane.large_options = INF, []
        if not lane.order:
            return
        paths, budget_s = self.paths, self.observed.budget_s
        large = large_path(lane, paths, self._allowed_of(lane), budget_s)
        if large is None:
            return
        sizes = [rows for rows in self.observed.size_groups if rows >= large.from_rows] or [large.from_rows]
        row_s = {p: self.row_times.elapsed_s(lane, p, sizes=sizes) for p in (*lane.order, large.path)}
        order = large_order(paths, lane.order, large.path, row_s)
        lane.large_rows = large.from_rows
        lane.large_options = path_options(order, paths, lane.max_rows, lane.merge_rows)
        mean_rows, backoff = sum(sizes) // len(sizes), self.loss_backoff
        compare_speeds(
            lane.large_options, paths, row_s, row_s, mean_rows, self.utilization, budget_s, backoff
        )

    def _find_faster_lanes(self, lane: LaneState) -> None:
        """Sets the lanes that are much faster than this one, with their rates without its help."""
        assert self.prices is not None
        lane.faster = []
        if not lane.order:
            return
        net_value = max(
            self.prices.net_value(lane.device, self.paths[p].value, self.paths[p].row_s) for p in lane.order
        )
        is_worth_its_time = net_value >= self.prices.row - VALUE_TOLERANCE
        for other in lane.others:
            factor = FASTER_FACTOR if other.device == lane.device else 1.0
            if other.rate > factor * lane.rate:
                rate = other.rate
                if is_worth_its_time and other.device != lane.device:
                    rate = 1 / self.row_times.elapsed_s(other, other.order[0])
                lane.faster.append(FasterLane(other, rate))

    @property
    def disturbed(self) -> bool:
        """Whether other programs delay a single inline lane that has time for all that arrives."""
        lane = self.sole_inline_lane
        return lane is not None and lane.correction.waiting >= DISTURBED and self.utilization < CROWDED

    def is_possible(self, rows: int, budget_s: float, best_only: bool = False) -> bool:
        """Whether a query alone on the server meets its budget, on the fastest path that it allows.

        A client may choose a budget that is too small at any load. It does not indicate load and must not
        affect the answers to others.

        best_only: whether only paths of the highest value may answer.
        """
        return self.slack_s(rows, budget_s, best_only) >= 0

    def slack_s(self, rows: int, budget_s: float, best_only: bool = False) -> float:
        """Returns the seconds for which a query may wait if it executes alone, as in `is_possible`."""
        alone_s = (self.best_alone_times if best_only else self.alone_times)[rows]
        return budget_s - alone_s - self.front.answering_s(rows)

    def drain_s(self, rows: float, queries: int) -> float:
        """Returns the seconds needed to execute `rows` waiting rows of `queries` queries.

        If the front limits total_rate, that rate assumes queries of mean size; few large queries take less.
        """
        seconds = rows / self.total_rate
        if self.front_factor == 1.0:
            return seconds
        return max(seconds * self.front_factor, self.front.row_s * rows + self.front.query_s * queries)

    def executing_rows(self, now_s: float) -> float:
        """Returns the remaining work of running batches, in rows at total_rate."""
        rows = 0.0
        for lane in self.usable:
            left_s = lane.free_s - now_s
            if left_s > 0 and lane.in_flight is not None:
                rows += left_s * lane.rate
        return rows * self.front_factor

    def service_time_s(self, rows: int, queued_rows: float) -> float:
        """Returns the tail service time on the fastest device, merged with queued rows, split if large."""
        batch_rows = rows + int(queued_rows)
        if batch_rows > self.max_merge_rows:
            batch_rows = self.max_merge_rows
        return self.service_times[batch_rows if batch_rows > rows else rows]

    def best_service_time_s(self, rows: int) -> float:
        """Returns `service_time_s`, alone and on paths of the highest value; infinity if no lane has one."""
        return service_time_s(self._lane_paths(self._best_of), rows)

    def _lane_paths(self, chosen: LanePaths, undisturbed: bool = False) -> list[LanePath]:
        """Returns each usable lane with the chosen ones of its paths.

        undisturbed: whether to use the lanes' undisturbed speed.
        """
        lanes = [0] * len(self.devices)
        for lane in self.usable:
            lanes[lane.device] += 1
        found = []
        for lane in self.usable:
            factors = lane.correction.undisturbed if undisturbed else lane.correction.tail
            for p in chosen(lane):
                tail, count = self.paths[p].latency.tail, lanes[lane.device]
                found.append(LanePath(tail, factors, p, lane.merge_rows[p], lane.max_rows[p], count))
        return found

    def _best_of(self, lane: LaneState) -> Iterable[int]:
        """Returns a path of the highest value, if the lane has one."""
        return [p for p in lane.paths if self.paths[p].value >= self.best_value][:1]

    def _allowed_of(self, lane: LaneState) -> list[int]:
        """Returns all paths that the policy may use, also those not in use now.

        If queries that only those can answer counted as impossible, the traffic that needs them would never
        be observed.
        """
        return [p for p in lane.paths if p in self.allowed_paths and self.paths[p].value > 0]


def _last_of(lane: LaneState) -> Iterable[int]:
    """Returns the last paths of usual and of large queries, if the lane has any."""
    return {options[-1].path for options in (lane.options, lane.large_options) if options}


def _representation(path: str) -> str:
    return path.partition("@")[0]
