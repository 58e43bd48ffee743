"""What a plan should give: the traffic it was made for, what it serves of it, what keeps it from more.

Written by `polyrec plan` into the plan file, for people and for comparison with what is measured; a
server ignores it. Rates are rows a second; the objective is correct predictions a second, MP-Rec's
correct-prediction throughput: rows answered within the promise, each counted by its path's accuracy.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.files import Strict
from polyrec.planner.traffic import Traffic

Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

BoundKind = Literal["time", "memory", "promise"]


class ExpectedPath(Strict):
    """One path. share: of the rows that are served. largest_rows: of a query that it answers within
    the promise. batch_rows: to which waiting queries are merged when its lanes are full."""

    path: str
    share: Share
    accuracy: Share
    largest_rows: Annotated[int, Field(ge=1)]
    batch_rows: Annotated[int, Field(ge=1)]


class ExpectedDevice(Strict):
    """One device, or `front`, the core that reads requests and writes answers.

    load: share of its time that the traffic takes, of what the promise leaves usable. price: correct
    predictions a second that one more lane's time would add (the dual of its time).
    """

    device: str
    lanes: Annotated[int, Field(ge=1)]
    load: Real
    price: Real


class Bound(Strict):
    """One thing that keeps correct predictions from rising: `what` is a device, its memory, or rows of
    queries that no path answers within the promise. gain: correct predictions a second without it."""

    kind: BoundKind
    what: str
    gain: Real


class More(Strict):
    """What one more would buy, by planning again with it: correct predictions and rows a second."""

    what: str
    correct_per_s: float
    rows_per_s: float


class Expected(Strict):
    """Averaged over the traffic's time.

    asked_rows_per_s: the traffic's. rows_per_s: of those, answered within the promise (goodput).
    accuracy: mean over those. unserved: share of the rows that no path answers within the promise at
    any load. gap: how far the plan may be from the best one, relative (the solver's bound).
    cost_per_million: predictions, of the devices used, where they have prices.
    """

    traffic: Traffic
    slo_ms: Annotated[float, Field(gt=0)]
    machine: str
    asked_rows_per_s: Real
    rows_per_s: Real
    correct_per_s: Real
    accuracy: Share
    unserved: Share = 0.0
    paths: tuple[ExpectedPath, ...]
    devices: tuple[ExpectedDevice, ...]
    bound: tuple[Bound, ...] = ()
    more: tuple[More, ...] = ()
    gap: Real = 0.0
    cost_per_million: Real | None = None

    @property
    def served(self) -> float:
        """Share of the rows asked that are answered within the promise."""
        return min(self.rows_per_s / self.asked_rows_per_s, 1.0) if self.asked_rows_per_s else 1.0
