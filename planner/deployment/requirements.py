"""Requirements of a plan: SLO, traffic, memory budgets and lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyrec.planner.plan import LaneKind
from polyrec.planner.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Requirements:
    """Input of the planner besides the profile.

    slo_s: tail latency to meet, in seconds. memory: bytes by device, instead of the machine's. cores: CPU
    cores, instead of the machine's. copies: number of each device, all with the same content (default 1).
    lane: kind of the CPU's lanes. swing: spare memory is used for paths that suit this multiple of the stated
    rate, and the rate divided by it; 1: none.
    """

    slo_s: float
    traffic: Traffic
    memory: Mapping[str, int] = field(default_factory=dict)
    cores: int | None = None
    copies: Mapping[str, int] = field(default_factory=dict)
    lane: LaneKind | None = None
    swing: float = 4.0
