"""Describes expected traffic: arrival rate, query sizes, and the arrival process.

`parse_traffic` converts a short text like `rate=400,sizes=lognormal`, or a YAML or JSON file, to a frozen
`Traffic`. The planner, the simulator, the load tests and the clairvoyant bound use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict, read_json, read_yaml, validate_as
from polyrec.models.schema.batch import I64

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

MLPERF = (100,) * 2 + (200,) * 12 + (300,) * 2 + (400, 500, 600, 700)
DEEPRECSYS_MU, DEEPRECSYS_SIGMA = 5.1, 0.2
DEEPRECSYS_MEAN = exp(DEEPRECSYS_MU + DEEPRECSYS_SIGMA**2 / 2)
HEAVY_SIGMA = 1.0
MAX_ROWS = 4096
QUANTILES = 4096


class TrafficError(PolyrecError):
    """A traffic description is malformed or names a file that cannot be read."""


class Sizes(Strict):
    """Distribution of the rows of a query.

    kind: `fixed`: always `mean`.
        `lognormal`: DeepRecSys's (mu 5.1, sigma 0.2), scaled to `mean`.
        `mlperf`: the 20 equally likely quantiles of DLRM-v2's server scenario.
        `heavy`: lognormal with sigma 1, clipped to [1, 4096].
        `measured`: `values` with `shares`, which default to equal shares.
    """

    kind: Literal["fixed", "lognormal", "mlperf", "heavy", "measured"] = "fixed"
    mean: Positive | None = None
    values: tuple[Annotated[int, Field(ge=1, le=2**20)], ...] = ()
    shares: tuple[Positive, ...] = ()

    @model_validator(mode="after")
    def _has_mean_where_needed(self) -> Sizes:
        if self.kind == "fixed" and self.mean is None:
            raise ValueError("sizes 'fixed' need their mean: the rows of every query")
        if self.kind in ("mlperf", "measured") and self.mean is not None:
            raise ValueError(f"sizes '{self.kind}' have a mean of their own; leave 'mean' out")
        if self.kind == "measured":
            if not self.values:
                raise ValueError("sizes 'measured' need 'values'")
            if self.shares and len(self.shares) != len(self.values):
                raise ValueError(f"{len(self.values)} values have {len(self.shares)} shares")
        elif self.values or self.shares:
            raise ValueError(f"'values' and 'shares' belong to sizes 'measured', not '{self.kind}'")
        return self

    @property
    def mean_rows(self) -> float:
        """Expected rows per query, rounded and clipped as in `sample`."""
        if self.kind == "measured":
            return float(np.average(self.values, weights=self.shares or None))
        if self.kind == "mlperf":
            return float(np.mean(MLPERF))
        if self.kind == "fixed":
            return float(_round_rows(np.asarray([self.mean])).item())
        normal = _normal_quantiles()
        return float(_round_rows(np.exp(self._mu + self._sigma * normal)).mean())

    def sample(self, n: int, rng: np.random.Generator) -> I64:
        """Draws the sizes of n queries: int64 [n], each at least 1."""
        if self.kind == "mlperf":
            return rng.choice(np.asarray(MLPERF, np.int64), n)
        if self.kind == "measured":
            shares = np.asarray(self.shares or (1.0,) * len(self.values))
            return rng.choice(np.asarray(self.values, np.int64), n, p=shares / shares.sum())
        if self.kind == "fixed":
            return _round_rows(np.full(n, self.mean, np.float64))
        return _round_rows(rng.lognormal(self._mu, self._sigma, n))

    @property
    def _sigma(self) -> float:
        return HEAVY_SIGMA if self.kind == "heavy" else DEEPRECSYS_SIGMA

    @property
    def _mu(self) -> float:
        return log(self.mean or DEEPRECSYS_MEAN) - self._sigma**2 / 2


class Arrivals(Strict):
    """Arrival process around the mean rate.

    kind: `poisson`: constant rate.
        `bursty`: two-state MMPP with `factor` times the low rate for `burst_s` every `period_s`, on average.
        `diurnal`: a sine with period `period_s`, starting at rate / factor.
        `step`: `factor` times the rate from `start_s` on for `burst_s`.
        `trace`: the times in `file` (seconds, one per line, or a .npy file), scaled to the rate.
    """

    kind: Literal["poisson", "bursty", "diurnal", "step", "trace"] = "poisson"
    factor: Positive = 5.0
    period_s: Positive = 60.0
    burst_s: Positive = 10.0
    start_s: Annotated[float, Field(ge=0)] = 10.0
    file: str | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Arrivals:
        if self.kind == "bursty" and self.burst_s >= self.period_s:
            raise ValueError(f"a burst of {self.burst_s:g} s does not fit a period of {self.period_s:g} s")
        if self.kind in ("bursty", "diurnal") and self.factor < 1:
            raise ValueError(f"factor {self.factor:g} is below 1")
        if (self.kind == "trace") != (self.file is not None):
            raise ValueError("arrivals 'trace' need 'file', and only they have one")
        return self


class Traffic(Strict):
    """Expected traffic. rate: mean queries/s; for `step` arrivals, the rate outside the step."""

    rate: Annotated[Positive, Field(le=1e15)]
    sizes: Sizes = Sizes(mean=23)
    arrivals: Arrivals = Arrivals()

    @property
    def rows_s(self) -> float:
        """Mean rows/s."""
        return self.rate * self.sizes.mean_rows


SHORT = (
    "rate=400,sizes=mlperf,arrivals=bursty; keys: rate, sizes=KIND[:MEAN], arrivals=KIND, "
    "factor, period_s, burst_s, start_s, file"
)


def parse_traffic(text_or_file: str | Path) -> Traffic:
    """Parses traffic from its short form or from a YAML or JSON file. Raises TrafficError."""
    text = str(text_or_file)
    file, what = Path(text), f"traffic '{text}'"
    if file.suffix in (".yaml", ".yml", ".json"):
        raw = _read(file, what)
    elif "=" in text:
        raw = _short(text)
    else:
        raise TrafficError(
            f"traffic '{text}' is neither a .yaml or .json file nor of the form {SHORT.partition(';')[0]}"
        )
    return validate_as(Traffic, raw, what, TrafficError)


def parse_sizes(text: str) -> Sizes:
    """Parses sizes like `mlperf` or `fixed:23`. Raises TrafficError."""
    return parse_traffic(f"rate=1,sizes={text}").sizes


def _read(file: Path, what: str) -> dict[str, Any]:
    read = read_json if file.suffix == ".json" else read_yaml
    try:
        return read(file, what, TrafficError)
    except FileNotFoundError:
        raise TrafficError(f"no traffic file '{file}'") from None


def _short(text: str) -> dict[str, Any]:
    """Parses the short form into the fields of `Traffic`."""
    raw: dict[str, Any] = {}
    arrivals: dict[str, Any] = {}
    for key, value in _pairs(text):
        if key == "rate":
            raw["rate"] = _number(text, key, value)
        elif key == "sizes":
            kind, colon, mean = value.partition(":")
            raw["sizes"] = {"kind": kind} | ({"mean": _number(text, key, mean)} if colon else {})
        elif key == "arrivals":
            arrivals["kind"] = value
        elif key == "file":
            arrivals["file"] = value
        elif key in ("factor", "period_s", "burst_s", "start_s"):
            arrivals[key] = _number(text, key, value)
        else:
            raise TrafficError(f"traffic '{text}': unknown key '{key}'; like {SHORT}")
    return raw | {"arrivals": arrivals} if arrivals else raw


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yields the keys and values of the short form."""
    seen = set()
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise TrafficError(f"traffic '{text}': '{pair.strip()}' is not KEY=VALUE; like {SHORT}")
        if key in seen:
            raise TrafficError(f"traffic '{text}': '{key}' is given twice")
        seen.add(key)
        yield key, value


def _number(text: str, key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise TrafficError(f"traffic '{text}': {key} '{value}' is not a number") from None


def _round_rows(rows: NDArray[np.float64]) -> I64:
    return np.clip(np.rint(rows), 1, MAX_ROWS).astype(np.int64)


def _normal_quantiles() -> NDArray[np.float64]:
    """Returns QUANTILES equally likely quantiles of the standard normal distribution."""
    grid = np.linspace(-6.0, 6.0, 48_001)
    density = np.exp(-grid * grid / 2)
    below = np.cumsum(density) - density / 2
    return np.interp((np.arange(QUANTILES) + 0.5) / QUANTILES, below / density.sum(), grid)
