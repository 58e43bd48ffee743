"""Allots a pool's time to models: maximizes weighted information, with a guaranteed share for each model.

Each model has an arrival rate, paths with a value and seconds per row, and a weight, since the information of
different models is not comparable. A model's gain from t seconds of lane time per second is concave and
piecewise linear (the upper hull of its paths and of rejecting). So for one pool, the optimum of

    maximize  sum over m of weight[m] gain[m](t[m])
    with      sum of t[m] <= capacity,  t[m] >= min(guaranteed[m], needed[m])

is found exactly without a solver: give each model its guaranteed time, and the remainder by falling slope.
`needed` is the time to answer all rows on the most efficient path, so no model is guaranteed better answers
while another rejects. Several pools are filled one after another with the rows left by earlier pools, as a
heuristic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class TimeDemand:
    """Demand of one model in a pool.

    rows_s: arriving rows per second.
    paths: (value, lane seconds) per row, for each path.
    lanes: number of the model's lanes in the pool.
    weight: weight of its information.
    guaranteed: seconds of lane time per second.
    """

    rows_s: float
    paths: tuple[tuple[float, float], ...]
    lanes: float
    weight: float
    guaranteed: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A linear segment of a model's gain. slope: information per second of lane time. seconds: length."""

    slope: float
    seconds: float


def gain(rows_s: float, paths: Sequence[tuple[float, float]]) -> list[Segment]:
    """Returns the segments of a model's gain from lane time, by falling slope. paths: see TimeDemand."""
    hull = [(0.0, 0.0)]
    for seconds, value in sorted((s * rows_s, v * rows_s) for v, s in paths):
        if value <= hull[-1][1] or seconds <= hull[-1][0]:
            if value <= hull[-1][1]:
                continue
            hull.pop()
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (seconds, value)):
            hull.pop()
        hull.append((seconds, value))
    return [Segment(_slope(a, b), b[0] - a[0]) for a, b in pairwise(hull)]


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def allot(capacity: float, demands: Sequence[TimeDemand]) -> list[float]:
    """Returns each model's seconds of lane time per second, whose sum is at most the capacity.

    The sum of guaranteed times must not exceed the capacity.
    """
    allotted_s = [0.0] * len(demands)
    left = capacity
    wanted: list[tuple[float, int, float]] = []
    for m, demand in enumerate(demands):
        spare = demand.lanes
        guaranteed = demand.guaranteed
        for segment in gain(demand.rows_s, demand.paths):
            seconds = min(segment.seconds, spare)
            spare -= seconds
            first = min(seconds, guaranteed)
            guaranteed = 0.0  # covers the most efficient path only; more time is allotted by value
            allotted_s[m] += first
            left -= first
            if seconds > first:
                wanted.append((-demand.weight * segment.slope, m, seconds - first))
    for _, m, seconds in sorted(wanted):
        more = max(0.0, min(seconds, left))
        allotted_s[m] += more
        left -= more
    return allotted_s


def rows_left(demand: TimeDemand, seconds: float) -> float:
    """Returns the rows per second that do not fit a model's time, even on its most efficient path."""
    segments = gain(demand.rows_s, demand.paths)
    if not segments:
        return demand.rows_s
    return demand.rows_s * max(0.0, 1 - seconds / segments[0].seconds)
