"""Several training runs of several models: what the seed of a run adds to every figure.

A difference between two models has two sources of chance. One is the test rows: other rows would have
given another figure (models/evaluation/comparison.py resamples them). The other is training: another seed
would have given another model. Runs are paired by seed, and a difference is called real only where both say
so: the bootstrap interval of the mean difference excludes 0, and so does Student's interval over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyrec.models.evaluation.comparison import (
    LEVEL,
    METRICS,
    Interval,
    Metric,
    Verdict,
    percentiles,
    verdict,
)
from polyrec.models.schema.batch import F64

# Quantiles of Student's t for 95%, by degrees of freedom (seeds - 1); beyond them the normal's is close.
STUDENT = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216)


@dataclass(frozen=True, slots=True)
class Spread:
    """A metric over runs. deviation: sample standard deviation, nan for one run."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference to the baseline's run of the same seed.

    over_rows: its bootstrap interval. over_seeds: Student's interval, nan for one run.
    """

    metric: Metric
    over_rows: Interval
    over_seeds: Interval

    @property
    def interval(self) -> Interval:
        """What holds for other rows and for other seeds: the hull of both (the rows' alone, for one run)."""
        rows, seeds = self.over_rows, self.over_seeds
        return Interval(
            rows.value, float(np.fmin(rows.low, seeds.low)), float(np.fmax(rows.high, seeds.high))
        )

    @property
    def verdict(self) -> Verdict:
        """As polyrec.models.evaluation.comparison.verdict: better or worse where the interval excludes 0."""
        return verdict(self.metric, self.interval)


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
    """One model's runs. to_baseline: None for the baseline itself."""

    own: dict[Metric, Spread]
    to_baseline: dict[Metric, Difference] | None


def over_seeds(samples: F64, names: Sequence[str], baseline: str) -> dict[str, RepeatedRuns]:
    """Every model's runs together.

    samples: float64 [1 + resamples, models * seeds, METRICS] of
    polyrec.models.evaluation.comparison.samples, the runs of one model next to one another, seeds in the
    same order for all. names: of the models."""
    drawn = samples.reshape(samples.shape[0], len(names), -1, len(METRICS))
    base = list(names).index(baseline)
    found = {}
    for i, name in enumerate(names):
        own = {m: _spread(drawn[0, i, :, k]) for k, m in enumerate(METRICS)}
        difference = drawn[:, i] - drawn[:, base]
        to_baseline = {m: _difference(m, difference[:, :, k]) for k, m in enumerate(METRICS)}
        found[name] = RepeatedRuns(own, None if i == base else to_baseline)
    return found


def _spread(runs: F64) -> Spread:
    return Spread(float(runs.mean()), float(runs.std(ddof=1)) if runs.size > 1 else float("nan"))


def _difference(metric: Metric, drawn: F64) -> Difference:
    """drawn: [1 + resamples, seeds]."""
    runs, nan = drawn[0], float("nan")
    mean = float(runs.mean())
    resampled = drawn[1:].mean(axis=1)
    resampled = resampled[np.isfinite(resampled)]
    if not resampled.size or not np.isfinite(mean):
        return Difference(metric, Interval(nan, nan, nan), Interval(nan, nan, nan))
    over_rows = Interval(mean, *percentiles(resampled, LEVEL))
    half = nan
    if runs.size > 1:
        quantile = STUDENT[runs.size - 2] if runs.size - 2 < len(STUDENT) else 2.0
        half = quantile * float(runs.std(ddof=1)) / runs.size**0.5
    return Difference(metric, over_rows, Interval(mean, mean - half, mean + half))
