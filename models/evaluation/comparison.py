"""Compares models on the same rows with confidence intervals.

`compare` takes labels and each model's probabilities, and returns each metric and its difference from a
baseline with a confidence interval. Both use one paired bootstrap (Efron and Tibshirani, 1993, chapter 16):
every resample draws the same rows for all models, so that the difficulty of rows cancels in the difference.
Rows of one request are drawn together, because they share a user and at most one click and so are not
independent observations.

A resample is a weight per row, the number of times it was drawn; rows are not copied. A model's scores are
sorted once, and the AUC of each resample is then a cumulative sum over weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import pi, sqrt, tan
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyrec.models.evaluation.metrics import Ranks, binary_entropy, row_losses, row_weights
from polyrec.models.schema.batch import F32, F64, I64

Bools = NDArray[np.bool_]

Metric = Literal["information", "auc", "log_loss", "accuracy", "mrr", "ndcg"]
METRICS: tuple[Metric, ...] = ("information", "auc", "log_loss", "accuracy")
"""Metrics of a comparison, for any data; mrr and ndcg need groups."""
POSSIBLE = np.array([(-np.inf, 1.0), (0.0, 1.0), (0.0, np.inf), (0.0, 1.0)])
"""Least and largest value of each, float64 [METRICS, 2]."""
LOWER_IS_BETTER = frozenset({"log_loss"})
RESAMPLES = 1000
LEVEL = 0.95

Verdict = Literal["better", "worse", "unclear", "identical", "undefined"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its bootstrap percentile interval; all NaN if the metric is undefined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One model among those compared.

    metrics: each metric with its interval. to_baseline: each metric minus the baseline's; None for the
    baseline itself.
    """

    metrics: Mapping[Metric, Interval]
    to_baseline: Mapping[Metric, Interval] | None

    def verdict(self, metric: Metric) -> Verdict | None:
        """Classifies the difference to the baseline; None for the baseline itself.

        better, worse: the interval excludes 0. unclear: it does not. identical: no resample differs.
        """
        return None if self.to_baseline is None else verdict(metric, self.to_baseline[metric])


def verdict(metric: Metric, difference: Interval) -> Verdict:
    """Classifies a difference, see ComparedModel.verdict."""
    if not np.isfinite([difference.value, difference.low, difference.high]).all():
        return "undefined"
    if difference.value == difference.low == difference.high == 0:
        return "identical"
    if difference.low <= 0 <= difference.high:
        return "unclear"
    return "better" if (difference.high < 0) == (metric in LOWER_IS_BETTER) else "worse"


def compare(
    labels: F32,
    predictions: Mapping[str, F32],
    baseline: str,
    groups: I64 | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
    negatives_kept: float = 1.0,
) -> dict[str, ComparedModel]:
    """Returns the metrics and differences of every model, by name.

    labels: float32 [rows], 0 or 1. predictions: name -> float32 [rows], click probabilities.
    groups: int64 [rows], the request of each row; requests are drawn instead of rows. negatives_kept: as in
    polyrec.models.evaluation.metrics.evaluate.
    """
    if baseline not in predictions:
        raise ValueError(f"baseline '{baseline}' is not among {', '.join(predictions)}")
    names = list(predictions)
    every = list(predictions.values())
    drawn = samples(labels, every, groups, resamples, seed, negatives_kept=negatives_kept)
    drawn = widened(drawn, labels, groups)
    base = names.index(baseline)
    return {
        name: ComparedModel(
            # `widened` may exceed the range of a metric, so clip; a difference keeps its whole interval
            _intervals(drawn[:, i].clip(*POSSIBLE.T), level),
            None if i == base else _intervals(drawn[:, i] - drawn[:, base], level),
        )
        for i, name in enumerate(names)
    }


def samples(
    labels: F32,
    predictions: Sequence[F32],
    groups: I64 | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    metrics: Sequence[Metric] = METRICS,
    negatives_kept: float = 1.0,
) -> F64:
    """Returns metrics, float64 [1 + resamples, models, metrics]: of all rows, then of each resample.

    Resamples depend only on the rows and the seed, so those of separate calls on the same rows are paired.
    negatives_kept: as in polyrec.models.evaluation.metrics.evaluate. See `compare` for the other arguments.
    """
    unit = None if groups is None else np.unique(groups, return_inverse=True)[1]
    units = labels.size if unit is None else int(unit.max()) + 1
    models = [_Resampled(p, labels, groups, unit, metrics, negatives_kept) for p in predictions]
    every = chain((np.ones(units, np.int64),), draws(units, resamples, seed))
    return np.stack([[model.measure(weights) for model in models] for weights in every])


def widened(drawn: F64, labels: F32, groups: I64 | None) -> F64:
    """Returns `samples` with the resamples moved away from the value by `small_sample_factor`.

    drawn: [1 + resamples, ...]. labels, groups: as for `samples`.
    """
    return np.concatenate(
        (drawn[:1], drawn[0] + small_sample_factor(labels, groups) * (drawn[1:] - drawn[0]))
    )


def small_sample_factor(labels: F32, groups: I64 | None) -> float:
    """Returns the width of Student's interval relative to the percentile bootstrap's, which is too narrow for
    few observations.

    The observations are the rows (or requests, `groups` int64 [rows]) with a click or those without,
    whichever are fewer. The factor is 9 for two of them, 1.2 for ten, 1.02 for a hundred.
    """
    clicked = labels > 0.5
    kinds = (clicked, np.logical_not(clicked))
    n = max(2, min(int(kind.sum()) if groups is None else np.unique(groups[kind]).size for kind in kinds))
    share = (1 + LEVEL) / 2
    return student_quantile(share, n - 1) / NormalDist().inv_cdf(share) * sqrt(n / (n - 1))


def student_quantile(share: float, freedom: int) -> float:
    """Returns a quantile of Student's distribution, within 1% between 0.9 and 0.99.

    Exact for one and two degrees of freedom, else by the series of Abramowitz and Stegun, 26.7.5, because
    servers do not have SciPy.
    """
    if freedom == 1:
        return tan(pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) / sqrt(2 * share * (1 - share))
    z = NormalDist().inv_cdf(share)
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))


class _Resampled:
    """Computes one model's metrics under any weights of the sampled units: rows or requests.

    unit: int64 [rows], the request of each row; None: each row is a unit.
    """

    def __init__(
        self,
        p: F32,
        labels: F32,
        groups: I64 | None,
        unit: I64 | None,
        metrics: Sequence[Metric],
        negatives_kept: float,
    ) -> None:
        self._metrics, self._unit = metrics, unit
        weights = row_weights(labels, negatives_kept)
        self._rows = _sums(weights, unit)
        self._clicks = _sums(labels > 0.5, unit)
        self._losses = _sums(row_losses(p, labels) * weights, unit)
        self._hits = _sums(((p > 0.5) == (labels > 0.5)) * weights, unit)
        self._scores = SortedScores(p, labels) if "auc" in metrics else None
        ranked = groups is not None and not {"mrr", "ndcg"}.isdisjoint(metrics)
        self._ranks = Ranks(p, labels, groups) if ranked and groups is not None else None
        if self._ranks is not None and groups is not None:
            self._ranked = np.searchsorted(np.unique(groups), self._ranks.group)

    def measure(self, weights: I64) -> list[float]:
        """Returns the metrics, NaN where undefined. weights: int64 [units], how often each was drawn."""
        weight = weights.astype(np.float64)
        rows = float(self._rows @ weight)
        return [self._value(metric, weights, weight, rows) for metric in self._metrics]

    def _value(self, metric: Metric, weights: I64, weight: F64, rows: float) -> float:
        if metric == "auc":
            assert self._scores is not None
            return self._scores.auc(weights if self._unit is None else weights[self._unit])
        if metric == "accuracy":
            return float(self._hits @ weight) / rows
        if metric in ("mrr", "ndcg"):
            if self._ranks is None:
                return float("nan")
            drawn = weight[self._ranked]
            values = self._ranks.reciprocal if metric == "mrr" else self._ranks.ndcg
            return float(drawn @ values / drawn.sum()) if drawn.any() else float("nan")
        loss = float(self._losses @ weight) / rows
        if metric == "log_loss":
            return loss
        entropy = binary_entropy(float(self._clicks @ weight) / rows)
        return 1 - loss / entropy if entropy else float("nan")


def _sums(values: NDArray[Any], unit: I64 | None) -> F64:
    """Sums the rows of each unit."""
    if unit is None:
        return values.astype(np.float64)
    return np.bincount(unit, weights=values.astype(np.float64)).astype(np.float64)


def draws(units: int, resamples: int, seed: int) -> Iterator[I64]:
    """Yields bootstrap weights, int64 [units]: how often each unit is drawn in `units` draws with
    replacement.
    """
    random = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(random.integers(0, units, units), minlength=units)


class SortedScores:
    """One model's scores, sorted once to compute the AUC under any weights of its rows.

    Stores, for each positive, how many negatives score below it and how many score at most as high.
    """

    def __init__(self, scores: F32, labels: F32) -> None:
        positive = labels > 0.5
        negatives = np.flatnonzero(~positive)
        self._negatives = negatives[np.argsort(scores[negatives], kind="stable")]
        positives = np.flatnonzero(positive)
        # sorted as well, so that the lookups below access memory in order
        self._positives = positives[np.argsort(scores[positives], kind="stable")]
        ordered = scores[self._negatives]
        self._below = np.searchsorted(ordered, scores[self._positives], "left")
        self._upto = np.searchsorted(ordered, scores[self._positives], "right")

    def auc(self, weights: I64) -> float:
        """Returns the AUC, counting ties half; NaN if a class has no weight. weights: int64 [rows],
        non-negative.
        """
        positive = weights[self._positives]
        cumulative = np.zeros(self._negatives.size + 1, np.int64)
        np.cumsum(weights[self._negatives], out=cumulative[1:])
        pairs = int(positive.sum()) * int(cumulative[-1])
        if not pairs:
            return float("nan")
        return float(positive @ (cumulative[self._below] + cumulative[self._upto])) / (2 * pairs)


def _intervals(samples: F64, level: float) -> dict[Metric, Interval]:
    """Returns the interval of each metric. samples: [1 + resamples, METRICS], the first row being the
    value.
    """
    found = {}
    for i, metric in enumerate(METRICS):
        value, drawn = float(samples[0, i]), samples[1:, i]
        drawn = drawn[np.isfinite(drawn)]
        if not drawn.size or not np.isfinite(value):
            found[metric] = Interval(float("nan"), float("nan"), float("nan"))
            continue
        found[metric] = Interval(value, *percentiles(drawn, level))
    return found


def percentiles(drawn: F64, level: float) -> tuple[float, float]:
    """Returns the ends of the central `level` share of resampled values."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def pareto(cost: F64, quality: F64) -> Bools:
    """Returns the points of the Pareto front, bool [n].

    cost: lower is better. quality: higher is better. Equal points are on the front together; a point with
    quality nan never is.
    """
    known = np.isfinite(quality)
    no_worse = (cost <= cost[:, None]) & (quality >= quality[:, None])
    better = (cost < cost[:, None]) | (quality > quality[:, None])
    return known & np.logical_not((no_worse & better).any(axis=1))
