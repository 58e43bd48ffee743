"""Requirements of a plan: SLO, traffic, memory budgets and lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyrec.planner.plan import LaneKind, Limits
from polyrec.planner.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Requirements:
    """Input of the planner besides the profile.

    slo_s: the tail latency to meet. memory: bytes by device, in place of the machine's own. cores: of
    the CPU, in place of the machine's. copies: how many there are of a device, all with the same content
    (default 1). lane: kind of the CPU's lanes. swing: spare memory takes further paths for this
    factor of the stated rate, and for its inverse; 1: none.
    """

    slo_s: float
    traffic: Traffic
    memory: Mapping[str, int] = field(default_factory=dict)
    cores: int | None = None
    copies: Mapping[str, int] = field(default_factory=dict)
    lane: LaneKind | None = None
    swing: float = 4.0
    max_batch_rows: int = Limits().max_batch_rows
