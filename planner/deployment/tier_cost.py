"""Cost of tier misses: the tiers below a memory, and the time that a batch waits for them.

A simple additive model: the look-ups of a batch that miss are served one after the other, each for the tier's
latency and its bytes over the tier's bandwidth, and execution follows. A remote store is queried once a
batch, so its latency counts once. Nothing overlaps, so a runtime that fetches rows while others are computed
does better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from polyrec.planner.devices import Device, Machine

PAGE = 4096
"""Bytes that a disk gives at least: a row is read with the page it lies on."""
P99 = 2.326
"""Standard deviations to the 99th percentile of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Tier:
    """`latency_s` a look-up, and its bytes (at least `block`) over `bandwidth` bytes/s; `once_s` a batch."""

    name: str
    latency_s: float
    bandwidth: float
    block: int = 1
    once_s: float = 0.0

    def seconds(self, row_bytes: float) -> float:
        """Seconds of one look-up."""
        return self.latency_s + max(row_bytes, self.block) / self.bandwidth

    def miss_cost(self, per_row: float, row_bytes: float) -> MissCost:
        """Returns the cost of `per_row` look-ups per row of a query, each of row_bytes bytes."""
        return MissCost(per_row, self.seconds(row_bytes), self.once_s if per_row else 0.0)


@dataclass(frozen=True, slots=True)
class MissCost:
    """Look-ups beyond a cut: `per_row` of a query's row on average, `seconds` each, `once_s` a batch."""

    per_row: float
    seconds: float
    once_s: float = 0.0

    def median(self, rows: float) -> float:
        """Seconds that a batch of `rows` rows waits for them."""
        return self.once_s + rows * self.per_row * self.seconds

    def tail(self, rows: float) -> float:
        """The same at the 99th percentile: look-ups fall beyond the cut independently of one another."""
        mean = rows * self.per_row
        return self.once_s + (mean + P99 * math.sqrt(mean)) * self.seconds


def tiers_below(device: Device, machine: Machine) -> tuple[Tier, ...]:
    """Returns the tiers below a device, in order: the host over the link, or the disk, then remote."""
    if device.kind != "cpu":
        host = any(d.kind == "cpu" for d in machine.devices)
        return (Tier("host", 0.0, device.link),) if device.link and host else ()
    below = []
    if machine.disk_latency_s and machine.disk_bandwidth:
        below.append(Tier("disk", machine.disk_latency_s, machine.disk_bandwidth, PAGE))
    if remote := machine.remote:
        below.append(Tier("remote", 0.0, remote.bandwidth, once_s=remote.latency_s))
    return tuple(below)
