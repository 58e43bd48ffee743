"""Tabulates a path's latency by rows, so that the hot path does a list lookup instead of a search.

A `LatencyTable` is built once from the plan's `LatencyModel`. It has the median and tail seconds of a batch
and the smallest efficient batch size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log

import numpy as np

from polyrec.planner.latency_model import LatencyModel

TAIL_DEVIATIONS = 2.326347874040841
"""99th percentile of the standard normal distribution."""
SAFE_EXPONENT = 0.42
"""Exponent of tail / median that extends a lognormal's tail from 2.33 to 3.3 standard deviations."""
EFFICIENT = 1.02
"""A batch is efficient if its cost per row is at most this factor times the minimum."""


class LatencyTable:
    """Latency of batches of 0 to `rows` rows; index 0 equals index 1.

    median, tail: seconds by rows.
    spread: log(tail / median) by rows.
    efficient_rows: rows of the smallest efficient batch.
    variance, mean_factor: variance of the logarithm, and mean over median, of a lognormal with that tail.
    safe_factor: factor on the tail for a batch that must not be late.
    """

    __slots__ = (
        "efficient_rows", "mean_factor", "median", "rows", "safe_factor", "spread", "tail", "variance",
    )  # fmt: skip

    def __init__(self, model: LatencyModel, rows: int) -> None:
        self.rows = rows
        self.median = _table(model.rows, model.median_s, rows)
        self.tail = _table(model.rows, model.tail_s, rows)
        self.spread = [log(tail / median) for tail, median in zip(self.tail, self.median, strict=True)]
        self.safe_factor = (self.tail[1] / self.median[1]) ** SAFE_EXPONENT
        at = np.arange(1, rows + 1)
        per_row = np.asarray(self.median[1:]) / at
        good = per_row <= EFFICIENT * per_row.min()
        self.efficient_rows = int(at[np.argmax(good)])
        self.variance = (self.spread[self.efficient_rows] / TAIL_DEVIATIONS) ** 2
        self.mean_factor = exp(self.variance / 2)

    def mean_row_s(self, sizes: Sequence[int], batch_rows: int, max_rows: int) -> float:
        """Returns mean seconds per row of queries of these sizes, merged to batches of batch_rows rows.

        A query larger than that executes alone, in batches of at most max_rows.
        """
        median = self.median
        merged_s, largest_s = median[batch_rows] / batch_rows, median[max_rows] / max_rows
        seconds = 0.0
        for rows in sizes:
            if rows <= batch_rows:
                seconds += rows * merged_s
            else:
                seconds += median[rows] if rows <= max_rows else rows * largest_s
        return seconds / sum(sizes) * self.mean_factor

    def max_rows_at_median(self, seconds: float) -> int:
        """Returns the maximum rows with a median of at most `seconds`; 0 if even one row takes longer."""
        return max(0, bisect_right(self.median, seconds) - 1)

    def max_rows_at_tail(self, seconds: float) -> int:
        """Returns the maximum rows with a tail of at most `seconds`; 0 if even one row takes longer."""
        return max(0, bisect_right(self.tail, seconds) - 1)


def in_batches(seconds: Sequence[float], rows: int, max_rows: int) -> float:
    """Returns the seconds of `rows` rows in consecutive batches of at most max_rows. seconds: by rows."""
    batches, rest = divmod(rows, max_rows)
    return batches * seconds[max_rows] + (seconds[rest] if rest else 0.0)


def _table(knots: tuple[int, ...], seconds: tuple[float, ...], rows: int) -> list[float]:
    """Evaluates `LatencyModel.median` for all of 0 ... rows at once."""
    at = np.arange(rows + 1, dtype=np.float64)
    values = np.interp(at, knots, seconds)
    beyond = at > knots[-1]
    if len(knots) == 1:
        values[beyond] = seconds[0] * at[beyond] / knots[0]
    else:
        slope = (seconds[-1] - seconds[-2]) / (knots[-1] - knots[-2])
        values[beyond] = seconds[-1] + slope * (at[beyond] - knots[-1])
    table: list[float] = values.tolist()
    return table
