"""JSON views of the router: a snapshot of its state, and the explanation of a routing decision.

explain.py fills them. Field names are keys of public JSON (`/v1/paths`, `/v1/route`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane. factor: current slowdown relative to the profile. used: busy share of the last two seconds."""

    name: str
    device: str
    alive: bool
    busy: bool
    breaker: str
    factor: float
    used: float


@dataclass(frozen=True, slots=True)
class PathView:
    """A path.

    value: worth of an answered row times the operator's weight.
    share: share of recently dispatched rows.
    latency_s: corrected median in seconds by rows, on the fastest usable lane of its device; empty without
        one.
    """

    name: str
    value: float
    latency_s: dict[str, float]
    share: float


@dataclass(frozen=True, slots=True)
class RouterSnapshot:
    """The state of a router.

    demand_rows_s: see ObservedTraffic.
    size_rows: quantiles of recent query sizes.
    total_rate: capacity of all usable lanes in rows/s.
    prices: by device, the value that one more second of lane time would add.
    """

    policy: str
    queries_s: float
    demand_rows_s: float
    size_rows: dict[str, float]
    budget_s: float
    queued_queries: int
    queued_rows: int
    total_rate: float
    lanes: tuple[LaneView, ...]
    paths: tuple[PathView, ...]
    prices: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A path considered for a hypothetical query.

    queue_s: predicted queue delay.
    execute_s: tail service time.
    price: value that its device time would add elsewhere.
    why: explanation in words.
    """

    path: str
    value: float
    queue_s: float
    execute_s: float
    feasible: bool
    price: float
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision for a hypothetical query.

    path: None if the query would be rejected or no path meets the budget.
    """

    rows: int
    budget_s: float
    required: bool
    policy: str
    path: str | None
    reason: str
    why: str
    retry_after_s: float | None
    candidates: tuple[Candidate, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
