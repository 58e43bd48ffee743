"""Orders the paths that a lane may use, for queries of usual size and for large ones.

Which of two paths is faster depends on the rows: one may have the lower fixed cost, the other the lower cost
per row. So the paths of usual queries are compared at the size of recent batches, and large queries get other
paths if another one has more value per second at their size, or alone executes them within the usual budget.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import NormalDist
from typing import NamedTuple

from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.lanes.path import PathState
from polyrec.planner.routing.latency.latency_table import TAIL_DEVIATIONS, in_batches

NORMAL = NormalDist()
MIN_SPREAD = 1e-6
"""Least log(tail / median), for paths that always take as long."""
BUSY = 0.5
"""Share of a lane's time from which batches may grow to the largest merged ones."""


def usual_order(
    paths: Sequence[PathState],
    usable: Sequence[int],
    row_s: Mapping[int, float],
    full_row_s: Mapping[int, float],
    lane_rows_s: float,
    avoidable_share: Callable[[float], float],
) -> list[int]:
    """Returns the paths of usual queries by falling value, each faster than the ones before.

    Excludes paths faster than the one with the most value per second in the largest merged batches, which is
    better even past capacity. As long as the lane is not busy, batches do not grow to that size. So the one
    with the most value per second in usual batches is included too, if it would avoid losses worth more than
    the quality it costs.

    usable: paths that may be used.
    row_s, full_row_s: their seconds per row in usual and in the largest merged batches.
    lane_rows_s: the lane's part of the rows/s that arrive.
    avoidable_share: see `LossBackoff`.
    """
    if not usable:
        return []
    by_value = sorted(usable, key=lambda p: (-paths[p].value, row_s[p]))
    full = max(by_value, key=lambda p: paths[p].value / full_row_s[p])
    last = {full}
    if lane_rows_s * full_row_s[full] < BUSY:
        quick = max(by_value, key=lambda p: paths[p].value / row_s[p])
        if avoidable_share(1 - row_s[quick] / row_s[full]) > 1 - paths[quick].value / paths[full].value:
            last.add(quick)
    order: list[int] = []
    for p in by_value:
        if not order or row_s[p] < row_s[order[-1]]:
            order.append(p)
        last.discard(p)
        if not last:
            break
    return order


def large_order(
    paths: Sequence[PathState], usual: Sequence[int], large: int, row_s: Mapping[int, float]
) -> list[int]:
    """Returns the paths of large queries by falling value, each faster than the ones before.

    usual: the order of usual queries, from which paths of more value are kept.
    large: the last one, see `large_path`.
    row_s: seconds per row of large queries.
    """
    order: list[int] = []
    for p in usual:
        is_faster = not order or row_s[p] < row_s[order[-1]]
        if paths[p].value > paths[large].value and row_s[p] > row_s[large] and is_faster:
            order.append(p)
    return [*order, large]


class LargePath(NamedTuple):
    """A path for large queries. from_rows: rows from which it has more value per second than the fastest."""

    path: int
    from_rows: int


def large_path(
    lane: LaneState, paths: Sequence[PathState], allowed: Sequence[int], budget_s: float
) -> LargePath | None:
    """Returns the path of the most value per second for the largest queries; None if that is the fastest.

    The largest are those that some path executes within the usual budget at its median.

    allowed: paths that the policy may use.
    """
    fastest = lane.fastest
    largest = max(_rows_within(lane, paths[p], budget_s) for p in allowed)
    if not largest:
        return None

    def value_per_s(path: int, rows: int) -> float:
        return _value_per_s(lane, paths[path], rows, budget_s)

    best = max(allowed, key=lambda p: value_per_s(p, largest))
    if value_per_s(best, largest) <= value_per_s(fastest, largest):
        return None

    def is_better(rows: int) -> bool:
        return value_per_s(best, rows) > value_per_s(fastest, rows)

    return LargePath(best, 1 + bisect_left(range(1, largest), True, key=is_better))


def _rows_within(lane: LaneState, path: PathState, budget_s: float) -> int:
    """Returns the rows of the largest query that the path executes in budget_s seconds, alone on the lane."""
    latency, max_rows = path.latency, lane.max_rows[path.index]
    seconds = budget_s / lane.correction.undisturbed[path.index]
    batches, rest_s = divmod(seconds, latency.median[max_rows])
    return min(latency.rows, int(batches) * max_rows + min(max_rows, latency.max_rows_at_median(rest_s)))


def _value_per_s(lane: LaneState, path: PathState, rows: int, budget_s: float) -> float:
    """Returns the expected value per row and second of lane time of a query that executes alone.

    A late answer has no value. Times are lognormal.
    """
    latency = path.latency
    seconds = in_batches(latency.median, rows, lane.max_rows[path.index])
    seconds *= lane.correction.undisturbed[path.index]
    deviations = log(budget_s / seconds) * TAIL_DEVIATIONS / max(latency.spread[rows], MIN_SPREAD)
    return NORMAL.cdf(deviations) * path.value / seconds
