"""What look-ups beyond a memory cost: a tier below, and the time that a batch waits for it.

A simple additive model: the look-ups of a batch that miss are served one after the other, each for the
tier's latency and its bytes over the tier's bandwidth, and execution follows. Nothing overlaps, so a
runtime that fetches rows while others are computed does better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.devices import Device, Machine

PAGE = 4096
"""Bytes that a disk gives at least: a row is read with the page it lies on."""
P99 = 2.326
"""Standard deviations to the 99th percentile of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Tier:
    """`latency_s` a look-up, and its bytes (at least `block`) over `bandwidth` bytes/s."""

    name: str
    latency_s: float
    bandwidth: float
    block: int = 1

    def seconds(self, row_bytes: float) -> float:
        """Of one look-up."""
        return self.latency_s + max(row_bytes, self.block) / self.bandwidth


@dataclass(frozen=True, slots=True)
class Missing:
    """Look-ups beyond the cut: `per_row` of a query's row on average, `seconds` each."""

    per_row: float
    seconds: float

    def median(self, rows: float) -> float:
        """Seconds that a batch of `rows` rows waits for them."""
        return rows * self.per_row * self.seconds

    def tail(self, rows: float) -> float:
        """The same at the 99th percentile: look-ups fall beyond the cut independently of one another."""
        mean = rows * self.per_row
        return (mean + P99 * math.sqrt(mean)) * self.seconds


NOTHING_MISSING = Missing(0.0, 0.0)


def tier_below(device: Device, machine: Machine) -> Tier | None:
    """Where rows go that do not fit a device: to the host over the link, from the host to the disk."""
    if device.kind != "cpu":
        host = any(d.kind == "cpu" for d in machine.devices)
        return Tier("host", 0.0, device.link) if device.link and host else None
    if machine.disk_latency_s and machine.disk_bandwidth:
        return Tier("disk", machine.disk_latency_s, machine.disk_bandwidth, PAGE)
    return None
