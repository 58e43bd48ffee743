"""An option: a path with so many of its rows resident, what it costs of its device, what it can promise.

A profiled path, the lanes it would run on and the `Ask` go in; device seconds by class of queries come
out. The assumptions, all of them (docs/planner.md says why):

- A batch lasts at most L / (L + 1) of the promise on a device of L lanes, and a query waits at most one
  L-th of a batch until a lane is free; so waiting and execution together keep the promise.
- When lanes are full, waiting queries are merged into batches as large as that allows.
- Of a window's capacity only so much is planned for that the rows which arrive in a window, as a
  compound Poisson process, exceed it one time in a hundred: headroom comes from the traffic's own noise.
- A lane is as fast beside others as alone, and a look-up beyond the resident rows costs its tier's time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from models.batch import F64
from models.embeddings.tiers.budget import CACHED
from planner.deployment.ask import Ask
from planner.deployment.classes import SizeClass
from planner.deployment.residency import Residency, Tables
from planner.deployment.tier import NOTHING_MISSING, P99, PAGE, Missing, tier_below
from planner.devices import Device, Machine
from planner.latency import LatencyModel
from planner.plan import LaneKind, Limits
from planner.profile import Front, PathProfile

HOPS_S: dict[LaneKind, tuple[float, float]] = {
    "inline": (0.0, 0.0),
    "thread": (57e-6, 90e-6),
    "process": (91e-6, 273e-6),
}
"""Median and tail of the way to a lane on another core and back, as docs/lanes.md measured it."""
LARGEST = Limits().max_request_rows


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of one device: how many, of which kind, the tail time that a batch may last on one."""

    device: Device
    count: int
    kind: LaneKind

    @property
    def hop(self) -> tuple[float, float]:
        """Seconds to the lane and back beside execution, median and tail."""
        return HOPS_S[self.kind]

    @property
    def share(self) -> float:
        """Of the promise, that a batch may last: the rest is for waiting until a lane is free."""
        return self.count / (self.count + 1)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a batch lasts: as measured with all rows resident, what look-ups elsewhere add, and the way
    to the lane and back."""

    latency: LatencyModel
    miss: Missing
    hop: tuple[float, float]

    def median(self, rows: float) -> float:
        """Seconds of a batch of `rows` rows."""
        return self.latency.median(round(rows)) + self.miss.median(rows) + self.hop[0]

    def tail(self, rows: float) -> float:
        """The same at the 99th percentile."""
        return self.latency.tail(round(rows)) + self.miss.tail(rows) + self.hop[1]

    def model(self) -> LatencyModel:
        """Of execution alone, as one curve, at the same rows."""
        rows, latency, miss = self.latency.rows, self.latency, self.miss
        return LatencyModel(
            rows=rows,
            median_s=tuple(latency.median(n) + miss.median(n) for n in rows),
            tail_s=tuple(latency.tail(n) + miss.tail(n) for n in rows),
        )


@dataclass(frozen=True, slots=True)
class Option:
    """A path with some of its rows resident on its device.

    group: the bundle on the device; options of a group share their rows' bytes. cuts: rows of each table
    that are resident; None: all. resident, elsewhere: bytes of rows within the cuts, and beyond, which
    lie in `tier`. lookups: share of them that the cuts cover. cost_s: float64 [classes], device
    seconds of a query of each class; inf where it cannot keep the promise. batch_rows: to which
    queries are merged when the lanes are full.
    """

    path: int
    group: int
    cuts: tuple[int, ...] | None
    resident: float
    elsewhere: float
    tier: str | None
    lookups: float
    cost_s: F64
    batch_rows: int
    largest_rows: int
    timing: Timing

    @property
    def cache(self) -> float:
        """Bytes of the device's memory for pages of the rows on disk."""
        return cache_beside(self.resident) if self.tier == "disk" else 0.0

    @property
    def held(self) -> float:
        """Bytes of the device's memory that its rows take, cached pages and all."""
        return self.resident + self.cache


def cache_beside(resident: float) -> float:
    """Bytes of pages beside so many bytes of resident rows; one page at least."""
    return max(resident * CACHED / (1 - CACHED), float(PAGE))


def headroom(capacity: float, dispersion: float) -> float:
    """Share of a window's capacity to plan for, in (0, 1].

    capacity: mean-sized jobs that a window can do. dispersion: second moment of a job's size over its
    squared mean. The jobs arriving in a window exceed its capacity with probability 1%, by the normal
    approximation of a compound Poisson process: m + 2.33 sqrt(m * dispersion) = capacity.
    """
    spread = P99 * math.sqrt(dispersion)
    root = (math.sqrt(spread**2 + 4 * capacity) - spread) / 2
    return root**2 / capacity


@dataclass(frozen=True, slots=True)
class Costing:
    """What options of one path cost."""

    path: PathProfile
    tables: Tables | None
    on: Lanes
    front: Front
    ask: Ask
    machine: Machine
    classes: tuple[SizeClass, ...]

    def option(self, index: int, group: int, resident: Residency | None) -> Option:
        """The path, with only some rows resident (None: all of them)."""
        everything = float(sum(self.path.memory.tables.values()))
        tier = tier_below(self.on.device, self.machine)
        if resident is None or tier is None or self.tables is None:
            resident, miss, name = Residency((), everything, 1.0), NOTHING_MISSING, None
        else:
            per_row = self.tables.lookups * (1.0 - resident.lookups)
            miss, name = Missing(per_row, tier.seconds(self.tables.mean_row_bytes)), tier.name
        timing = Timing(self.path.latency, miss, self.on.hop)
        batch = self._batch(timing)
        cost, largest = self._costs(timing, batch)
        return Option(
            path=index,
            group=group,
            cuts=resident.cuts if name else None,
            resident=resident.bytes,
            elsewhere=everything - resident.bytes,
            tier=name,
            lookups=resident.lookups,
            cost_s=cost,
            batch_rows=batch,
            largest_rows=largest,
            timing=timing,
        )

    def window(self, rows: float) -> float:
        """What a batch may last for a query of `rows` rows, the front's part taken off."""
        return (self.ask.slo_s - self.front.query_s - self.front.row_s * rows) * self.on.share

    def _batch(self, timing: Timing) -> int:
        """Rows of the largest batch that mean queries are merged to within the promise, at least 1."""
        window = self.window(float(np.dot([c.rows for c in self.classes], [c.share for c in self.classes])))
        low, high = 1, self.ask.max_batch_rows
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if timing.tail(middle) <= window else (low, middle - 1)
        return low

    def _costs(self, timing: Timing, merged: int) -> tuple[F64, int]:
        """Device seconds a query [classes], and the largest query within the promise, 0 if none is."""
        classes = self.classes
        cost = np.full(len(classes), np.inf)
        kept = [i for i, c in enumerate(classes) if timing.tail(c.largest) <= self.window(c.largest)]
        if not kept:
            return cost, 0
        shares = np.array([classes[i].share for i in kept])
        rows = np.array([classes[i].rows for i in kept])
        mean = float(np.average(rows, weights=shares))
        dispersion = float(np.average(rows**2, weights=shares)) / mean**2
        for i in kept:
            own = classes[i].rows
            batch = max(float(merged), own)
            seconds = timing.median(batch)
            window_rows = self.on.count * batch * self.window(own) / seconds
            # a window holds at least one query
            cost[i] = own / batch * seconds / headroom(max(window_rows / mean, 1.0), dispersion)
        low, high = max(classes[i].largest for i in kept), max(LARGEST, classes[-1].largest)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if timing.tail(middle) <= self.window(middle) else (low, middle - 1)
        return cost, low
