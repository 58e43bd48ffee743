"""What the router tells about itself: its state as numbers, and why a query would go where. JSON-able."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LaneView:
    """factor: how many times slower than profiled at the moment. used: share of the last seconds at work."""

    name: str
    device: str
    alive: bool
    busy: bool
    breaker: str
    factor: float
    used: float


@dataclass(frozen=True, slots=True)
class PathView:
    """latency_s: corrected median on the fastest usable lane of its device, by rows; empty if there is none.

    share: of the rows dispatched recently. value: accuracy times weight.
    """

    name: str
    value: float
    latency_s: dict[str, float]
    share: float


@dataclass(frozen=True, slots=True)
class RouterState:
    """size_rows: quantiles of the sizes of recent queries. prices: correct predictions that a second of one
    lane of a device is worth. total_rate: rows/s that all usable lanes can do."""

    policy: str
    queries_s: float
    rows_s: float
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
    """One path for a hypothetical query. queue_s: until a lane takes it; execute_s: at the tail.

    price: correct predictions that its time is worth elsewhere. why: in words.
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
    """path: what would be chosen; None: the query would be refused, or no path can make it."""

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
