"""Estimates the extra time of a batch for rows outside of a device's memory, for given cuts.

The cost of rows on disk and in a remote store comes from the profile's measured cuts (planner/tier_times.py),
of the path's own bundle or else of the bundle with the most similar rows. Without measurements, it is derived
from the machine's description. Rows beyond an accelerator's memory are assumed to be transferred over the
link one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.models.tiers.tier_settings import PAGE_BYTES
from polyrec.planner.deployment.opened import OpenedCuts, batch_reads, rounds_of
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.devices import Device, Machine
from polyrec.planner.tier_times import BatchReads, CutTimes, TierCost

P99 = 2.326
"""Standard deviations from the mean to the 99th percentile of a normal distribution."""
ASSUMED = TierCost(
    batch_s=1e-4,
    lookup_s=2e-8,
    below_batch_s=3e-4,
    below_s=3e-6,
    wait_s=4e-4,
    read_s=2e-6,
    ahead_batch_s=5e-4,
    ahead_s=4e-6,
)
"""Processor time where nothing was measured: of an Intel Xeon, rounded (docs/results/tier-cut-times.md)."""
READS_AT_ONCE = 16
"""Reads that a disk serves side by side, where nothing was measured."""
MAX_LOOKUPS = 1e7
CURVE_POINTS = 33


@dataclass(frozen=True, slots=True)
class BelowMemory:
    """The tiers below a device, in order, and their cost.

    page_bytes: unit of disk reads; 0 without a disk. measured: the path whose cuts the cost is from, if any.
    """

    names: tuple[str, ...]
    cost: TierCost
    page_bytes: int = 0
    measured: str | None = None


NOTHING_BELOW = BelowMemory((), TierCost())


def tiers_below(device: Device, machine: Machine) -> tuple[str, ...]:
    """Returns the tiers below a device, in order: the host over the link, or the disk, then remote."""
    if device.kind != "cpu":
        return ("host",) if device.link and any(d.kind == "cpu" for d in machine.devices) else ()
    disk = ("disk",) if machine.disk_latency_s and machine.disk_bandwidth else ()
    return disk + (("remote",) if machine.remote else ())


def below_memory(
    device: Device, machine: Machine, row_bytes: float, measured: Sequence[CutTimes] = ()
) -> BelowMemory:
    """Returns the tiers below a device with their cost. measured: measured cuts, best suited first."""
    names = tiers_below(device, machine)
    if not names:
        return NOTHING_BELOW
    if device.kind != "cpu":
        assert device.link is not None
        return BelowMemory(names, TierCost(below_s=row_bytes / device.link))
    cost, page_bytes = ASSUMED, 0
    if "disk" in names:
        assert machine.disk_latency_s is not None
        assert machine.disk_bandwidth is not None
        cost, page_bytes = measured[0].cost if measured else ASSUMED, PAGE_BYTES
        if measured:
            page_bytes = measured[0].page_bytes
        else:
            a_read = machine.disk_latency_s / READS_AT_ONCE + PAGE_BYTES / machine.disk_bandwidth
            times = {"wait_s": cost.wait_s + machine.disk_latency_s, "read_s": cost.read_s + a_read}
            cost = cost.model_copy(update=times)
    if (remote := machine.remote) and not cost.remote_batch_s:
        times = {"remote_batch_s": remote.latency_s, "remote_s": row_bytes / remote.bandwidth}
        cost = cost.model_copy(update=times)
    used = measured[0].path if measured and "disk" in names else None
    return BelowMemory(names, cost, page_bytes, used)


def suited(measured: Sequence[CutTimes], paths: Sequence[str], row_bytes: float) -> tuple[CutTimes, ...]:
    """Returns measured cuts, best suited first. paths: the bundle's paths. row_bytes: bytes of its rows."""

    def differs(one: CutTimes) -> tuple[bool, float]:
        return one.path not in paths, abs(math.log(one.row_bytes / max(row_bytes, 1.0)))

    return tuple(sorted(measured, key=differs))


class CutTiming:
    """Seconds that a batch takes for rows beyond some cuts.

    ahead: whether the reads of a batch start while it is queued, if lanes are full.
    """

    def __init__(self, tables: Tables, opened: OpenedCuts, below: BelowMemory, ahead: bool) -> None:
        self._lookups, self._opened, self._cost, self.ahead = tables.lookups, opened, below.cost, ahead
        # interpolated, since each point sums over all runs of the tables
        self._at: F64 = np.geomspace(1.0, MAX_LOOKUPS, CURVE_POINTS)
        found = [batch_reads(tables, opened, n, below.cost.cached) for n in self._at.tolist()]
        self._reads: F64 = np.array([one.reads for one in found])
        # both are in proportion to the lookups
        self._below, self._remote = found[-1].below / MAX_LOOKUPS, found[-1].remote / MAX_LOOKUPS

    def reads(self, rows: float) -> BatchReads:
        """Returns the mean reads of a batch of `rows` rows."""
        lookups = rows * self._lookups
        if lookups < 1.0:
            reads = float(self._reads[0]) * lookups
        else:
            at, known = np.log(self._at), np.log(np.maximum(self._reads, 1e-12))
            reads = math.exp(float(np.interp(math.log(lookups), at, known)))
        if reads < 1e-9:
            reads = 0.0
        return BatchReads(
            lookups, lookups * self._below, reads, rounds_of(reads, self._opened), lookups * self._remote
        )

    def waiting(self, rows: float) -> float:
        """Returns the mean extra seconds of a batch of `rows` rows that waits for its reads."""
        return self._cost.seconds(self.reads(rows))

    def median(self, rows: float) -> float:
        """Returns the mean extra seconds of a batch when lanes are full."""
        return self._cost.seconds(self.reads(rows), self.ahead)

    def tail(self, rows: float) -> float:
        """Returns the 99th percentile of the extra seconds of a batch that waits for its reads.

        Lookups are assumed to fall beyond the cuts independently.
        """
        mean = self.reads(rows)
        below, reads, remote = (_p99(n) for n in (mean.below, mean.reads, mean.remote))
        rounds = max(reads / self._opened.page_slots, 1.0) if reads else 0.0
        worst = replace(mean, below=below, reads=reads, rounds=rounds, remote=remote, certain=True)
        return max(self._cost.seconds(worst), self.median(rows))


def _p99(mean: float) -> float:
    """Returns the 99th percentile of a count; 0 if at least 99% of counts are 0."""
    return mean + P99 * math.sqrt(mean) if mean > 0.01 else 0.0
