"""Options: paths with some of their rows resident, their device time, and the queries they answer in time.

An option is computed from a profiled path, the lanes it would run on and the `Requirements`. problem.py
collects all options, and the solver chooses among them. The assumptions (docs/planner.md explains them):

- On a device with L lanes, a batch takes at most L / (L + 1) of the SLO, and a query waits at most one L-th
  of a batch until a lane is free. So queue delay and service time together meet the SLO.
- When lanes are full, waiting queries are merged into batches as large as that allows.
- Headroom comes from the noise of the traffic: capacity is planned such that the rows arriving in a window,
  as a compound Poisson process, exceed it only one time in a hundred.
- A lane is as fast beside others as alone. Rows that are not resident cost what the profile's measured cuts
  show (docs/tier-cost.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.opened import cached_cuts, opened_cuts, resident_cuts
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.residency import Residency, Tables, residency
from polyrec.planner.deployment.tier_cost import P99, BelowMemory, CutTiming
from polyrec.planner.deployment.traffic_classes import SizeClass
from polyrec.planner.devices import Device
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, Limits
from polyrec.planner.profile import Front, Hop, PathProfile

LARGEST = Limits().max_request_rows
LARGEST_BATCH = Limits().max_batch_rows


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of one device.

    hop: seconds to a lane and back, in addition to execution.
    """

    device: Device
    count: int
    kind: LaneKind
    hop: Hop

    @property
    def share(self) -> float:
        """Share of the SLO that a batch may take; the rest is left for queue delay."""
        return self.count / (self.count + 1)


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration of a batch: latency with all rows resident, plus lower tiers, plus the hop to the lane."""

    latency: LatencyModel
    below: CutTiming | None
    hop: Hop

    def median(self, rows: float) -> float:
        """Seconds of a batch of `rows` rows."""
        return self._executes(rows) + self.hop.median_s

    def tail(self, rows: float) -> float:
        """99th percentile of the seconds of a batch of `rows` rows."""
        return self._executes_at_tail(rows) + self.hop.tail_s

    def model(self) -> LatencyModel:
        """Latency model of execution including rows in lower tiers, without the hop."""
        rows = self.latency.rows
        return LatencyModel(
            rows=rows,
            median_s=tuple(self._executes(n) for n in rows),
            tail_s=tuple(self._executes_at_tail(n) for n in rows),
        )

    def _executes(self, rows: float) -> float:
        return self.latency.median(round(rows)) + (self.below.median(rows) if self.below else 0.0)

    def _executes_at_tail(self, rows: float) -> float:
        return self.latency.tail(round(rows)) + (self.below.tail(rows) if self.below else 0.0)


@dataclass(frozen=True, slots=True)
class Option:
    """A path with some of its rows resident on its device.

    group: the bundle on the device; options of a group share their rows' bytes.
    cuts: number of resident rows of each table; None: all.
    uncached_cuts: rows of each table that the memory would hold without a cache; None: all.
    tier: the next tier, which holds rows up to `local_cuts`; None: all rows are resident.
    local_cuts: number of rows of each table before the remote ones; None: no row is remote.
    resident, next_tier_bytes, remote_bytes: bytes of rows in each.
    cache: bytes of the device's memory that cache rows on disk.
    lookups, cached, near: share of lookups within the cuts, within cuts and cache, and within cuts and
        `tier`.
    cost_s: float64 [classes], device seconds of a query of each class; inf if it cannot meet the SLO.
    batch_rows: size up to which queries are merged when the lanes are full, which takes the least time per
        row.
    """

    path: int
    group: int
    cuts: tuple[int, ...] | None
    uncached_cuts: tuple[int, ...] | None
    local_cuts: tuple[int, ...] | None
    resident: float
    cache: float
    next_tier_bytes: float
    remote_bytes: float
    tier: str | None
    lookups: float
    cached: float
    near: float
    cost_s: F64
    batch_rows: int
    largest_rows: int
    timing: Timing

    @property
    def file_bytes(self) -> float:
        """Bytes of the file on disk, which also contains the resident rows."""
        return self.resident + self.next_tier_bytes if self.tier == "disk" and self.next_tier_bytes else 0.0

    @property
    def device_bytes(self) -> float:
        """Bytes of the device's memory used by rows and cache."""
        return self.resident + self.cache


def headroom(capacity: float, dispersion: float) -> float:
    """Returns the share of a window's capacity to plan for, in (0, 1].

    The share is such that the jobs arriving in a window exceed its capacity with probability 1%, by the
    normal approximation of a compound Poisson process: m + 2.33 sqrt(m * dispersion) = capacity.

    capacity: mean-sized jobs that a window can execute. dispersion: second moment of a job's size over its
    squared mean.
    """
    spread = P99 * math.sqrt(dispersion)
    root = (math.sqrt(spread**2 + 4 * capacity) - spread) / 2
    return root**2 / capacity


@dataclass(frozen=True, slots=True)
class Costing:
    """Computes the options of one path and their cost. below: the tiers below its device."""

    path: PathProfile
    tables: Tables | None
    lanes: Lanes
    front: Front
    requirements: Requirements
    below: BelowMemory
    classes: tuple[SizeClass, ...]

    def option(
        self,
        index: int,
        group: int,
        resident: Residency | None,
        local_cuts: tuple[int, ...] | None = None,
    ) -> Option:
        """Returns the option whose memory has room for `resident` rows (None: for all rows).

        resident: number of rows that the memory would hold without a cache; if rows are on disk, the server
        divides that memory into a prefix and a cache. local_cuts: by table, the rank up to which rows are in
        the next tier; None: all remaining rows are.
        """
        everything = float(sum(self.path.memory.tables.values()))
        whole = Residency((), everything, 1.0)
        held, uncached_cuts, near, name, cache, cached = whole, None, whole, None, 0.0, 1.0
        timing = Timing(self.path.latency, None, self.lanes.hop)
        if resident is not None and self.below.names and self.tables is not None:
            name, uncached_cuts = self.below.names[0], resident.cuts
            near = whole if local_cuts is None else residency(self.tables, local_cuts)
            opened = resident_cuts(resident.cuts, local_cuts)
            if name == "disk":
                opened = opened_cuts(self.tables, resident.bytes, self.below.page_bytes, local_cuts)
            held, cache = residency(self.tables, opened.prefix), float(opened.cache_bytes)
            cached = residency(self.tables, cached_cuts(self.tables, opened, self.below.cost.cached)).lookups
            ahead = self.lanes.kind == "thread"
            timing = replace(timing, below=CutTiming(self.tables, opened, self.below, ahead))
        batch = self._batch(timing)
        cost, largest = self._costs(timing, batch)
        return Option(
            path=index,
            group=group,
            cuts=held.cuts if name else None,
            uncached_cuts=uncached_cuts,
            local_cuts=near.cuts if name and local_cuts is not None else None,
            resident=held.bytes,
            cache=cache,
            next_tier_bytes=near.bytes - held.bytes,
            remote_bytes=everything - near.bytes,
            tier=name,
            lookups=held.lookups,
            cached=max(cached, held.lookups),
            near=near.lookups,
            cost_s=cost,
            batch_rows=batch,
            largest_rows=largest,
            timing=timing,
        )

    def window(self, rows: float) -> float:
        """Returns the maximum seconds of the batch of a query of `rows` rows, without the front's time."""
        return (self.requirements.slo_s - self.front.query_s - self.front.row_s * rows) * self.lanes.share

    def _batch(self, timing: Timing) -> int:
        """Returns the rows of the batch with the least time per row that meets the SLO of a mean query.

        At least 1. Like the router, which merges no more queries than pays; the time per row has its minimum
        at the largest batch or where the latency model bends.
        """
        window = self.window(float(np.dot([c.rows for c in self.classes], [c.share for c in self.classes])))
        low, high = 1, LARGEST_BATCH
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if timing.tail(middle) <= window else (low, middle - 1)
        sizes = (low, *(rows for rows in timing.latency.rows if rows < low))
        return min(sizes, key=lambda rows: timing.median(rows) / rows)

    def _costs(self, timing: Timing, merged: int) -> tuple[F64, int]:
        """Returns device seconds per query, [classes], and the rows of the largest query within the SLO."""
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
            window_rows = self.lanes.count * batch * self.window(own) / seconds
            # a window holds at least one query
            cost[i] = own / batch * seconds / headroom(max(window_rows / mean, 1.0), dispersion)
        low, high = max(classes[i].largest for i in kept), max(LARGEST, classes[-1].largest)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if timing.tail(middle) <= self.window(middle) else (low, middle - 1)
        return cost, low
