"""Fits a path's latency model to measured batches: monotone, piecewise linear, robust.

    samples of a size, in rounds        rounds are minutes apart, so a disturbance affects one of them
      -> median: of the rounds' medians
      -> tail: median x ratio, the ratio being the 99th percentile of sample / its round's median,
         pooled over neighboring sizes if one size has too few samples for a percentile
      -> non-decreasing in rows: isotonic regression by medians
      -> the fewest knots that keep both curves within a tolerance

The error is measured on sizes to which the model was not fitted; their percentiles are pooled only among
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.profile import FitError, Point

TAIL_SAMPLES = 500
"""Samples for a 99th percentile: five of them lie beyond it."""
TAIL_SAMPLES_PER_ROUND = 100
MEDIAN_SAMPLES = 8
NEIGHBORS = 2
"""Maximum pooled sizes on each side: a factor of four in rows."""
TOLERANCE = 0.02
TAIL_TOLERANCE = 0.05
MIN_S = 1e-9


@dataclass(frozen=True, slots=True)
class SizeSamples:
    """Measured batches of `rows` rows: seconds of each, one non-empty array per round."""

    rows: int
    rounds: tuple[F64, ...]

    @property
    def samples(self) -> int:
        return sum(r.size for r in self.rounds)

    @property
    def median_s(self) -> float:
        return float(np.median([np.median(r) for r in self.rounds]))

    @property
    def longest_s(self) -> float:
        return max(float(r.max()) for r in self.rounds)

    def ratios(self) -> list[F64]:
        """Returns samples divided by their round's median, because drift between rounds is not a tail.

        Rounds with too few samples use the median of all rounds.
        """
        if self.samples < MEDIAN_SAMPLES * len(self.rounds):
            return [r / max(self.median_s, MIN_S) for r in self.rounds]
        return [r / max(float(np.median(r)), MIN_S) for r in self.rounds]


def points(sizes: Sequence[SizeSamples], fitted: bool = True) -> tuple[Point, ...]:
    """Computes the quantiles of each size, ascending in rows. The 90th and 99th percentiles are median x
    ratio.
    """
    ordered = sorted(sizes, key=lambda s: s.rows)
    made = []
    for i, size in enumerate(ordered):
        median = size.median_s
        made.append(
            Point(
                rows=size.rows,
                samples=size.samples,
                p50_s=median,
                p90_s=median * tail_ratio(ordered, i, 0.9),
                p99_s=median * tail_ratio(ordered, i, 0.99),
                max_s=size.longest_s,
                fitted=fitted,
            )
        )
    return tuple(made)


def tail_ratio(sizes: Sequence[SizeSamples], at: int, share: float = 0.99) -> float:
    """Returns the quantile `share` of sample / median at one of the sizes, at least 1.

    Pools up to NEIGHBORS sizes on each side until there are TAIL_SAMPLES samples. If rounds are large enough,
    takes the median of the rounds' quantiles, which tolerates a disturbed round; otherwise the quantile of
    all samples.
    """
    for reach in range(NEIGHBORS + 1):
        near = sizes[max(0, at - reach) : at + reach + 1]
        rounds = [np.concatenate(r) for r in _by_round(near)]
        if sum(r.size for r in rounds) >= TAIL_SAMPLES:
            break
    if min(r.size for r in rounds) >= TAIL_SAMPLES_PER_ROUND:
        return max(1.0, float(np.median([np.quantile(r, share) for r in rounds])))
    return max(1.0, float(np.quantile(np.concatenate(rounds), share)))


def _by_round(sizes: Sequence[SizeSamples]) -> list[list[F64]]:
    ratios = [size.ratios() for size in sizes]
    count = max(len(r) for r in ratios)
    return [[r[k] for r in ratios if k < len(r)] for k in range(count)]


def fit(measured: Sequence[Point], tolerance: float = TOLERANCE) -> LatencyModel:
    """Fits the model to at least one point, ascending in rows.

    tolerance: maximum relative error of the median from dropping knots; for the tail, TAIL_TOLERANCE /
    TOLERANCE times as much. With 0, only knots on a straight line are dropped.
    """
    rows = np.array([p.rows for p in measured], np.float64)
    weights = np.sqrt([max(p.samples, 1) for p in measured])
    median = np.maximum(isotonic(np.array([p.p50_s for p in measured]), weights), MIN_S)
    tail = np.maximum(isotonic(np.array([max(p.p99_s, p.p50_s) for p in measured]), weights), median)
    limits = np.array([[tolerance], [tolerance * TAIL_TOLERANCE / TOLERANCE]]) + 1e-9
    kept = knots(rows, np.stack((median, tail)), limits)
    if len(kept) > 1:
        # both are extrapolated beyond the last knot, and the tail must stay above the median
        before, last = kept[-2:]
        tail[last] = max(tail[last], tail[before] + median[last] - median[before])
    at = [(int(rows[i]), float(median[i]), float(tail[i])) for i in kept]
    if len(at) > 2 and at[-1][1] <= at[-2][1] * (1 + TOLERANCE):
        # The end is flat within the error of measurement. Extrapolated, batches of any size beyond it would
        # take no longer, so one of twice the rows is assumed to follow the mean slope of all.
        (least, fastest_s, _), (most, slowest_s, slowest_tail_s) = at[0], at[-1]
        more_s = (slowest_s - fastest_s) / (most - least) * most
        at.append((2 * most, slowest_s + more_s, slowest_tail_s + more_s))
    knot_rows, median_s, tail_s = zip(*at, strict=True)
    return LatencyModel(rows=knot_rows, median_s=median_s, tail_s=tail_s)


def fit_error(model: LatencyModel, unseen: Sequence[Point]) -> FitError | None:
    """Returns the mean relative error at points outside the fit; None if there are none."""
    if not unseen:
        return None
    median = [abs(model.median(p.rows) / max(p.p50_s, MIN_S) - 1) for p in unseen]
    tail = [abs(model.tail(p.rows) / max(p.p99_s, MIN_S) - 1) for p in unseen]
    return FitError(median=float(np.mean(median)), tail=float(np.mean(tail)))


def isotonic(values: F64, weights: F64) -> F64:
    """Returns the non-decreasing sequence with the least weighted absolute deviation from `values`.

    Pools adjacent violators with weighted medians (Robertson, Waltman 1968), so an outlier has only the
    influence of one sample on a median.
    """
    blocks: list[tuple[list[float], list[float], float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append(([value], [weight], value))
        while len(blocks) > 1 and blocks[-2][2] > blocks[-1][2]:
            last, before = blocks.pop(), blocks.pop()
            merged, heavy = before[0] + last[0], before[1] + last[1]
            blocks.append((merged, heavy, _median(merged, heavy)))
    return np.concatenate([np.full(len(block), level) for block, _, level in blocks])


def _median(values: list[float], weights: list[float]) -> float:
    """Returns the weighted median; the mean of two values if half the weight is on either side."""
    order = np.argsort(values, kind="stable")
    v, ends = np.array(values)[order], np.cumsum(np.array(weights)[order])
    half = ends[-1] / 2
    i = int(np.searchsorted(ends, half * (1 - 1e-12)))
    return float((v[i] + v[i + 1]) / 2 if np.isclose(ends[i], half) and i + 1 < v.size else v[i])


def knots(rows: F64, curves: F64, limits: F64) -> list[int]:
    """Returns the points to keep so that linear interpolation stays near all points.

    curves: float64 [curves, points], positive. limits: [curves, 1], relative errors. The first and the last
    point stay; of the others, the one that causes the least error is dropped first.
    """
    kept = list(range(rows.size))
    while len(kept) > 2:
        costs = [_max_error(rows, curves, limits, kept[:i] + kept[i + 1 :]) for i in range(1, len(kept) - 1)]
        least = int(np.argmin(costs))
        if costs[least] > 1.0:
            break
        del kept[least + 1]
    return kept


def _max_error(rows: F64, curves: F64, limits: F64, kept: list[int]) -> float:
    """Returns the largest interpolation error through `kept`, in units of the curve's limit."""
    lines = np.stack([np.interp(rows, rows[kept], curve[kept]) for curve in curves])
    return float((np.abs(lines / curves - 1) / limits).max())
