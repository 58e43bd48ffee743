"""Compares models over several training runs, one per seed.

A difference between two models has two sources of randomness: the test rows (models/evaluation/comparison.py
resamples them) and the seed of training. Runs are paired by seed, and a difference counts as real only if the
bootstrap interval of the mean difference and Student's interval over seeds both exclude 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

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


@dataclass(frozen=True, slots=True)
class Spread:
    """A metric over runs. deviation: sample standard deviation; nan for one run."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference from the baseline's run with the same seed.

    over_rows: its bootstrap interval. over_seeds: Student's interval, nan for one run.
    """

    metric: Metric
    over_rows: Interval
    over_seeds: Interval

    @property
    def interval(self) -> Interval:
        """Hull of both intervals, which holds for other rows and other seeds.

        For one run it is the rows' interval.
        """
        rows, seeds = self.over_rows, self.over_seeds
        return Interval(
            rows.value, float(np.fmin(rows.low, seeds.low)), float(np.fmax(rows.high, seeds.high))
        )

    @property
    def verdict(self) -> Verdict:
        """Better or worse if the interval excludes 0, see polyrec.models.evaluation.comparison.verdict."""
        return verdict(self.metric, self.interval)


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
    """One model's runs. to_baseline: None for the baseline itself."""

    metrics: dict[Metric, Spread]
    to_baseline: dict[Metric, Difference] | None


def summarize_runs(samples: F64, names: Sequence[str], baseline: str) -> dict[str, RepeatedRuns]:
    """Summarizes every model's runs.

    samples: float64 [1 + resamples, models * seeds, METRICS] of
    polyrec.models.evaluation.comparison.samples, the runs of one model adjacent, seeds in the same
    order for all. names: of the models.
    """
    drawn = samples.reshape(samples.shape[0], len(names), -1, len(METRICS))
    base = list(names).index(baseline)
    found = {}
    for i, name in enumerate(names):
        metrics = {m: _spread(drawn[0, i, :, k]) for k, m in enumerate(METRICS)}
        difference = drawn[:, i] - drawn[:, base]
        to_baseline = {m: _difference(m, difference[:, :, k]) for k, m in enumerate(METRICS)}
        found[name] = RepeatedRuns(metrics, None if i == base else to_baseline)
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
        half = float(stdtrit(runs.size - 1, (1 + LEVEL) / 2) * runs.std(ddof=1) / runs.size**0.5)
    return Difference(metric, over_rows, Interval(mean, mean - half, mean + half))
