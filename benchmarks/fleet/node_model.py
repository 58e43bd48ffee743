"""A simplified node for simulations of many: one queue, lanes, and the choice of paths by price.

Queries wait in one queue. A free lane takes the first query that its device can answer in time. Among the
paths whose predicted tail meets the deadline and that leave time for the rest of the queue, it uses the one
with the highest value minus price of device time; waiting queries are merged as far as that allows. A query
that cannot be in time behind the queue is rejected at arrival. Prices are those of the router
(routing/prices.py), from the node's own arrivals.

Unlike the full simulator (planner/simulation), it omits the event loop and the front's cost, splitting of
queries, different deadlines, corrections of latency, and faults. benchmarks/fleet/dispatch.py compares both
on one node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.latency.latency_table import TAIL_DEVIATIONS, LatencyTable
from polyrec.planner.routing.prices import solve_prices

INF = float("inf")
RATE_WEIGHT = 0.3
"""EWMA weight of the newest interval's arrivals."""
BATCH_SHARE = 0.5
"""Batch duration, as a share of the budget, at which a path's seconds per row are priced."""


@dataclass(frozen=True, slots=True)
class DevicePath:
    """A path on a device.

    row_s: seconds per row in the batches that prices assume. max_s: maximum tail up to which queries are
    merged.
    """

    device: int
    value: float
    quality: float
    median: list[float]
    tail: list[float]
    spread: float
    row_s: float
    max_s: float


class NodeKind:
    """The paths, lanes and tables that nodes of one type share.

    lanes: of each device. usual_rows: of a mean query.
    """

    def __init__(
        self,
        paths: Sequence[PathSpec],
        lanes: dict[str, int],
        budget_s: float,
        usual_rows: int,
        max_rows: int,
    ) -> None:
        self.devices = tuple(lanes)
        self.lanes = tuple(i for i, n in enumerate(lanes.values()) for _ in range(n))
        self.lane_counts = tuple(lanes.values())
        self.max_rows = max_rows
        self.paths: list[DevicePath] = []
        for spec in paths:
            table = LatencyTable(spec.latency, max_rows)
            batch = max(table.max_rows_at_tail(BATCH_SHARE * budget_s), usual_rows)
            batch = min(batch, max_rows)
            spread = table.spread[min(usual_rows, max_rows)] / TAIL_DEVIATIONS
            self.paths.append(
                DevicePath(
                    self.devices.index(spec.device),
                    spec.base_value,
                    spec.quality,
                    table.median,
                    table.tail,
                    spread,
                    table.median[batch] * table.mean_factor / batch,
                    BATCH_SHARE * budget_s,
                )
            )
        self.by_device = tuple(
            tuple(p for p in self.paths if p.device == d) for d in range(len(self.devices))
        )
        self.capacity = sum(
            n / min(p.row_s for p in own)
            for n, own in zip(self.lane_counts, self.by_device, strict=True)
            if own
        )
        """Rows/s on the fastest path of every device."""
        self.device_tail = [
            [min((p.tail[n] for p in own), default=INF) for n in range(max_rows + 1)]
            for own in self.by_device
        ]
        self.min_tail: list[float] = [min(tails) for tails in zip(*self.device_tail, strict=True)]
        """Seconds by rows on the fastest path of any device."""
        self.service_s = min(p.median[usual_rows] for p in self.paths)

    def order(self, rate: float) -> tuple[tuple[DevicePath, ...], ...]:
        """Returns the paths of each device, the highest value minus price first, at `rate` rows/s."""
        prices = self.prices(rate)
        return tuple(
            tuple(sorted(own, key=lambda p, price=price: (price * p.row_s - p.value, p.row_s)))  # type: ignore[misc]
            for own, price in zip(self.by_device, prices, strict=True)
        )

    def prices(self, rate: float) -> tuple[float, ...]:
        """Returns the price of a second of each device at `rate` rows/s."""
        offered = [[(p.value, p.row_s) for p in own] for own in self.by_device]
        return solve_prices(rate, self.lane_counts, offered).device


class NodeModel:
    """One node. information, rows_in_time: of finished batches; rejected, late: queries.

    normals: standard normal draws, used in turn for service times and shared by nodes.
    """

    __slots__ = (
        "_clock_s", "_free", "_normals", "_order", "_queue", "_queued", "_rate", "_since_s", "_tick_rows",
        "information", "kind", "late", "rejected", "rows_in_time", 
    )  # fmt: skip

    def __init__(self, kind: NodeKind, normals: Iterator[float]) -> None:
        self.kind = kind
        self._normals = normals
        self._free = [0.0] * len(kind.lanes)
        self._queue: list[tuple[float, int]] = []
        self._queued = 0
        self._clock_s = 0.0
        self._order = kind.order(0.0)
        self._rate, self._tick_rows, self._since_s = 0.0, 0, 0.0
        self.information, self.rows_in_time = 0.0, 0
        self.rejected, self.late = 0, 0

    def offer(self, now_s: float, rows: int, deadline_s: float) -> float:
        """Offers a query that arrives now; returns its predicted completion, infinity if rejected."""
        if self._queue:
            self._run(now_s)
        self._clock_s = now_s
        self._tick_rows += rows
        kind = self.kind
        end_s = max(min(self._free), now_s) + self._queued / kind.capacity + kind.min_tail[rows]
        if end_s > deadline_s:
            self.rejected += 1
            return INF
        self._queue.append((deadline_s, rows))
        self._queued += rows
        self._run(now_s)
        return end_s

    def _run(self, now_s: float) -> None:
        """Gives queries to the lanes that are free by now, in the order in which they became free."""
        free = self._free
        declined: set[int] = set()
        while self._queue:
            first_s, lane = INF, -1
            for i, at_s in enumerate(free):
                if at_s < first_s and i not in declined:
                    first_s, lane = at_s, i
            if first_s > now_s:
                return
            self._clock_s = max(self._clock_s, first_s)
            if self._take(lane, self._clock_s):
                declined.clear()
            else:
                declined.add(lane)

    def _take(self, lane: int, now_s: float) -> bool:
        """Executes a batch from the queue's head; returns False if no path of the lane's device can."""
        queue, kind = self._queue, self.kind
        while queue and queue[0][0] - now_s < kind.min_tail[queue[0][1]]:
            self._queued -= queue.pop(0)[1]
            self.late += 1
        device = kind.lanes[lane]
        least = kind.device_tail[device]
        start = 0
        while start < len(queue) and queue[start][0] - now_s < least[queue[start][1]]:
            start += 1
        if start == len(queue):
            return not queue
        deadline_s, rows = queue[start]
        room_s = deadline_s - now_s
        lanes = len(kind.lanes)
        order = self._order[device]
        for place, path in enumerate(order):
            if path.tail[rows] > room_s:
                continue
            total, end = rows, start + 1
            while end < len(queue):
                more = total + queue[end][1]
                if more > kind.max_rows or path.tail[more] > min(room_s, path.max_s):
                    break
                total, end = more, end + 1
            if end < len(queue) and place < len(order) - 1:
                last_deadline_s, last = queue[-1]
                ahead_s = (self._queued - total) / kind.capacity + path.median[total] / lanes
                if ahead_s + kind.min_tail[last] > last_deadline_s - now_s:
                    continue
            self._execute(lane, path, total, slice(start, end), now_s)
            return True
        return False

    def _execute(self, lane: int, path: DevicePath, rows: int, own: slice, now_s: float) -> None:
        typical_s = path.median[rows]
        end_s = now_s + typical_s * exp(path.spread * next(self._normals))
        self._free[lane] = end_s
        self._queued -= rows
        batch = self._queue[own]
        del self._queue[own]
        for deadline_s, query_rows in batch:
            if end_s <= deadline_s:
                self.rows_in_time += query_rows
                self.information += query_rows * path.quality
            else:
                self.late += 1

    def wait_s(self, now_s: float) -> float:
        """Returns the backlog in seconds: the mean of what lanes still execute, and the queue."""
        if self._queue:
            self._run(now_s)
        executing_s = sum([at_s - now_s for at_s in self._free if at_s > now_s])
        return executing_s / len(self._free) + self._queued / self.kind.capacity

    def tick(self, now_s: float) -> None:
        """Updates the rate and the prices."""
        passed_s = now_s - self._since_s
        if passed_s > 0:
            newest = self._tick_rows / passed_s
            first = self._since_s == 0.0
            self._rate = newest if first else self._rate + RATE_WEIGHT * (newest - self._rate)
            self._tick_rows, self._since_s = 0, now_s
            self._order = self.kind.order(self._rate)

    def finish(self) -> None:
        """Executes the waiting queries."""
        self._run(INF)
