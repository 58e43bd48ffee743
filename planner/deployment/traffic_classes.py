"""Discretizes traffic for the planner into a few query size classes and a few load levels.

A class is a size and the share of queries that have about this size. A level is a rate and the share of time
for which it lasts. So a program with one variable per class and level represents all queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.traffic import (
    DEEPRECSYS_MEAN,
    DEEPRECSYS_SIGMA,
    HEAVY_SIGMA,
    MAX_ROWS,
    MLPERF,
    Sizes,
    Traffic,
)

EDGES = (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
"""Quantiles that separate classes; finer for large queries, which decide which paths meet the SLO."""
GRID = 20_000
SINE_LEVELS = 4


@dataclass(frozen=True, slots=True)
class SizeClass:
    """A class of queries: `rows` on average, at most `largest`, `share` of all queries."""

    rows: float
    largest: int
    share: float


@dataclass(frozen=True, slots=True)
class Level:
    """A load level: `rate` queries per second during `share` of the time."""

    rate: float
    share: float


def size_classes(sizes: Sizes) -> tuple[SizeClass, ...]:
    """Returns at most 12 classes in ascending size; their shares sum to 1."""
    if sizes.kind == "fixed":
        rows = sizes.mean_rows
        return (SizeClass(rows, math.ceil(rows), 1.0),)
    if sizes.kind == "measured":
        shares = np.array(sizes.shares or (1.0,) * len(sizes.values), np.float64)
        return grouped(np.array(sizes.values, np.float64), shares)
    if sizes.kind == "mlperf":
        return grouped(np.array(MLPERF, np.float64), np.ones(len(MLPERF)))
    sigma = HEAVY_SIGMA if sizes.kind == "heavy" else DEEPRECSYS_SIGMA
    normal = NormalDist(math.log(sizes.mean or DEEPRECSYS_MEAN) - sigma**2 / 2, sigma)
    at = np.array([normal.inv_cdf((i + 0.5) / GRID) for i in range(GRID)])
    return grouped(np.clip(np.rint(np.exp(at)), 1, MAX_ROWS), np.ones(GRID))


def grouped(values: F64, shares: F64) -> tuple[SizeClass, ...]:
    """Groups query sizes [n] with their shares into at most 12 classes; a few sizes are kept as they are."""
    found, index = np.unique(values, return_inverse=True)
    weight = np.bincount(index, shares)
    weight = weight / weight.sum()
    if found.size < len(EDGES):
        group = np.arange(found.size)
    else:
        # a size belongs to the class in which the middle of its share lies
        group = np.searchsorted(EDGES, np.cumsum(weight) - weight / 2, side="right") - 1
    return tuple(
        SizeClass(
            min(float(np.average(found[own], weights=weight[own])), float(found[own].max())),
            int(found[own].max()),
            float(weight[own].sum()),
        )
        for g in np.unique(group)
        if (own := group == g).any()
    )


def load_levels(traffic: Traffic) -> tuple[Level, ...]:
    """Returns the rates among which the traffic varies.

    Their mean is the traffic's rate, except for `step`, which adds the step. A trace counts as its mean.
    """
    a, rate = traffic.arrivals, traffic.rate
    if a.kind == "bursty":
        share = min(a.burst_s / a.period_s, 1.0)
        low = rate / (1 + (a.factor - 1) * share)
        return (Level(low, 1 - share), Level(low * a.factor, share)) if share < 1 else (Level(rate, 1.0),)
    if a.kind == "step":
        share = min(a.burst_s / a.period_s, 1.0)
        return (Level(rate, 1 - share), Level(rate * a.factor, share)) if share < 1 else (Level(rate, 1.0),)
    if a.kind == "diurnal":
        # half a period in equal times; the other half mirrors it
        swing = rate - rate / a.factor
        at = (np.arange(SINE_LEVELS) + 0.5) / SINE_LEVELS
        return tuple(Level(rate - swing * math.cos(math.pi * t), 1 / SINE_LEVELS) for t in at.tolist())
    return (Level(rate, 1.0),)
