"""Computes the figures of a step of load: requests in time around each edge, time until quality adapts.

The input is the `Outcome` of a run at a base rate, `factor` times that, and the base rate again. The share in
time covers the 10 s around each edge. Rejections (429) are counted separately: after an early rejection a
client can go elsewhere, after a late answer it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polyrec.loadtest.results.figures import Figures, figures
from polyrec.loadtest.results.outcome import Fate, Outcome
from polyrec.models.schema.batch import F64

AROUND_S = 5.0
BIN_S = 0.1
SMOOTHED_BINS = 3
NO_CHANGE = 1e-6
ARRIVED = 0.1
"""A change counts as complete up to this share of it."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Shares of the requests around one edge. Names are the keys of the JSON results.

    refused: rejected. late: late or expired. ok_of_taken: share in time among those not rejected.
    """

    ok: float
    ok_of_taken: float
    refused: float
    late: float


@dataclass(frozen=True, slots=True)
class Step:
    """The figures of a step of load.

    up, down: around the two edges. before, high, after: figures of the three parts.
    bent_s: time from the step up until quality had adapted. returned_s: time from the step down until quality
    had recovered. Both are 0 if quality did not change, and None if it had not recovered by the end.
    """

    base: float
    factor: float
    up: Edge
    down: Edge
    before: Figures
    high: Figures
    after: Figures
    bent_s: float | None
    returned_s: float | None


def step_of(
    outcome: Outcome, quality: Mapping[str, float], up_s: float, down_s: float, base: float, factor: float
) -> Step:
    """Computes the figures of a run at `base` requests/s before up_s and after down_s, and `factor` times
    that between.
    """
    before = figures(outcome.between(up_s - AROUND_S, up_s), quality)
    high = figures(outcome.between((up_s + down_s) / 2, down_s), quality)
    after = figures(outcome.between(down_s + AROUND_S, outcome.end_s), quality)
    bent = returned = None
    if before.quality is not None and high.quality is not None:
        change = before.quality - high.quality
        bent = _reached(outcome, quality, up_s, down_s, high.quality, change)
        returned = _reached(outcome, quality, down_s, outcome.end_s, before.quality, change)
    return Step(
        base,
        factor,
        _edge(outcome, up_s),
        _edge(outcome, down_s),
        before,
        high,
        after,
        bent,
        returned,
    )


def _edge(outcome: Outcome, at_s: float) -> Edge:
    fate = outcome.between(at_s - AROUND_S, at_s + AROUND_S).fate
    n = max(fate.size, 1)
    shares = np.bincount(fate, minlength=len(Fate)) / n
    accepted = 1 - shares[Fate.REJECTED]
    return Edge(
        float(shares[Fate.OK]),
        float(shares[Fate.OK] / accepted) if accepted else 0.0,
        float(shares[Fate.REJECTED]),
        float(shares[Fate.LATE] + shares[Fate.EXPIRED]),
    )


def _reached(
    outcome: Outcome, quality: Mapping[str, float], from_s: float, to_s: float, goal: float, change: float
) -> float | None:
    """Returns the seconds from from_s until smoothed mean quality is within a tenth of the change from its
    goal.
    """
    if abs(change) < NO_CHANGE:
        return 0.0
    edges, mean = quality_by_time(outcome.between(from_s, to_s), quality)
    kernel = np.ones(SMOOTHED_BINS) / SMOOTHED_BINS
    smooth = np.convolve(mean, kernel, "valid") if mean.size >= SMOOTHED_BINS else mean
    there = np.flatnonzero(np.abs(smooth - goal) <= ARRIVED * abs(change))
    return float(edges[there[0]] - from_s) if there.size else None


def quality_by_time(outcome: Outcome, quality: Mapping[str, float]) -> tuple[F64, F64]:
    """Returns mean quality over time: the starts of bins of 0.1 s, and the mean over the rows answered in
    each.

    A bin without answers has its predecessor's value.
    """
    bins = max(1, round(outcome.seconds / BIN_S))
    edges = np.linspace(outcome.begin_s, outcome.end_s, bins + 1)
    answered = outcome.answered
    worth = np.array([*(quality.get(p, np.nan) for p in outcome.paths), np.nan])[outcome.path[answered]]
    due, rows = outcome.due_s[answered], outcome.rows[answered]
    of = np.clip(np.searchsorted(edges, due, side="right") - 1, 0, bins - 1)
    weight = np.bincount(of, weights=rows, minlength=bins)
    total = np.bincount(of, weights=rows * worth, minlength=bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / weight
    filled = np.maximum.accumulate(np.where(weight > 0, np.arange(bins), 0))
    return edges[:-1], mean[filled]
