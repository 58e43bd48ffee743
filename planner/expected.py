"""Expected results of a plan: the share of its traffic that it can serve, and its bottlenecks.

`polyrec plan` writes them into the plan file, for people and for comparison with measurements; the server
ignores them. Rates are rows per second. The objective is information per second within the SLO: rows answered
in time, each weighted by its path's quality. MP-Rec's correct-prediction throughput, weighted by accuracy
instead, is included too.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from polyrec.models.files import Strict
from polyrec.planner.quality import Finite
from polyrec.planner.traffic import Traffic

Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

BoundKind = Annotated[
    Literal["time", "memory", "slo"],
    # older plans have `promise`
    BeforeValidator(lambda kind: "slo" if kind == "promise" else kind),
]


class ExpectedPath(Strict):
    """One path.

    share: share of the served rows.
    largest_rows: rows of the largest query within the SLO.
    batch_rows: rows up to which queries are merged when its lanes are full.
    """

    path: str
    share: Share
    quality: Finite
    largest_rows: Annotated[int, Field(ge=1)]
    batch_rows: Annotated[int, Field(ge=1)]


class ExpectedDevice(Strict):
    """One device, or `front`, the core that reads requests and writes answers.

    load: used share of the time that is usable under the SLO.
    price: marginal information per second and lane (the dual of its time).
    """

    device: str
    lanes: Annotated[int, Field(ge=1)]
    load: Real
    price: Real


class Bottleneck(Strict):
    """A limit on information.

    what: a device, a memory, or queries that no path answers within the SLO.
    gain: information per second that removing the limit would add.
    """

    kind: BoundKind
    what: str
    gain: Real


class Upgrade(Strict):
    """Gain from one more core, device or GB, found by planning again with it."""

    what: str
    information_per_s: float
    rows_per_s: float


class Simulated(Strict):
    """Results of simulating the plan without costs beyond the profile (planner/simulation/preview.py).

    in_budget, p50_ms, p99_ms: at the plan's traffic; share of the queries, and latency of the answered ones.
    highest_rate: highest queries/s of Poisson arrivals with 99% in budget; None if there is none.
    quality_there: mean quality of the answered rows at that rate.
    """

    in_budget: Share
    p50_ms: Real
    p99_ms: Real
    highest_rate: Real | None = None
    quality_there: Finite | None = None


class Expected(Strict):
    """Expected results, averaged over time.

    asked_rows_per_s: arriving rows.
    rows_per_s: rows answered within the SLO (goodput).
    information_per_s, quality: information of the answered rows, and their mean quality.
    correct_per_s: answered rows expected to be classified correctly at threshold 0.5, if all paths have an
        accuracy.
    unserved: share of the rows that no path answers within the SLO at any load.
    gap: relative distance from the best plan, at most (the solver's bound).
    cost_per_million: cost of the used devices per million predictions, if they have prices.
    simulated: latency and highest rate, if simulated.
    """

    traffic: Traffic
    slo_ms: Annotated[float, Field(gt=0)]
    machine: str
    asked_rows_per_s: Real
    rows_per_s: Real
    information_per_s: Finite
    quality: Finite
    correct_per_s: Real | None = None
    unserved: Share = 0.0
    paths: tuple[ExpectedPath, ...]
    devices: tuple[ExpectedDevice, ...]
    bound: tuple[Bottleneck, ...] = ()
    more: tuple[Upgrade, ...] = ()
    gap: Real = 0.0
    cost_per_million: Real | None = None
    simulated: Simulated | None = None

    @property
    def served(self) -> float:
        """Share of the arriving rows that are answered within the SLO."""
        return min(self.rows_per_s / self.asked_rows_per_s, 1.0) if self.asked_rows_per_s else 1.0
