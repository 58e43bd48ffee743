"""The traffic that is expected: how many queries a second, of how many rows, arriving how.

A description in (a short text like `rate=400,sizes=lognormal`, a YAML or JSON file), one frozen
`Traffic` out. The planner, the simulator, the load tests and the bound all draw from it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from models.schema import Strict

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Sizes(Strict):
    """Rows of a query.

    `fixed`: always `mean`. `lognormal`: DeepRecSys's, mu 5.1, sigma 0.2 scaled to `mean`; `mlperf`: the 20
    equally likely quantiles of DLRM-v2's server scenario; `heavy`: a lognormal with sigma 1, clipped to
    [1, 4096]; `measured`: `values` with `shares`.
    """

    kind: Literal["fixed", "lognormal", "mlperf", "heavy", "measured"] = "fixed"
    mean: Positive | None = None
    values: tuple[Annotated[int, Field(ge=1)], ...] = ()
    shares: tuple[Positive, ...] = ()


class Arrivals(Strict):
    """When queries come, around the mean rate. `poisson`; `bursty`: a two-state MMPP, `factor` times the
    low rate for `burst_s` every `period_s`; `diurnal`: a sine of `period_s` from rate / factor; `step`:
    `factor` times the rate from `start_s` for `burst_s`; `trace`: the times in `file`."""

    kind: Literal["poisson", "bursty", "diurnal", "step", "trace"] = "poisson"
    factor: Positive = 5.0
    period_s: Positive = 60.0
    burst_s: Positive = 10.0
    start_s: Annotated[float, Field(ge=0)] = 10.0
    file: str | None = None


class Traffic(Strict):
    """rate: mean queries a second."""

    rate: Positive
    sizes: Sizes = Sizes(mean=23)
    arrivals: Arrivals = Arrivals()
