"""A path's latency as a table over rows: a list look-up on the hot path instead of a search.

Built once from the plan's `LatencyModel`; in, rows of a batch; out, seconds at the median and the tail, and
which batch sizes pay.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log

import numpy as np

from polyrec.planner.latency_model import LatencyModel

TAIL_DEVIATIONS = 2.326347874040841
"""The 99th percentile of a normal distribution."""
SURE = 0.42
"""Beyond the tail, 2.33 standard deviations of a lognormal, 3.3 of them: in powers of tail/median."""
EFFICIENT = 1.02
"""A batch is large enough to be merged no further when a row costs at most this times its least cost."""


class Curve:
    """median, tail: seconds at 0 ... rows rows (index 0 is the cost of an empty batch, as of one row).

    spread: logarithm of tail over median, by rows as well. efficient_rows: merging beyond buys nothing. mean:
    over the median, of a lognormal with that tail. sure: how much longer than the tail a batch may be assumed
    to take if it must not be late.
    """

    __slots__ = ("efficient_rows", "mean", "median", "rows", "spread", "sure", "tail")

    def __init__(self, model: LatencyModel, rows: int) -> None:
        self.rows = rows
        self.median = _table(model.rows, model.median_s, rows)
        self.tail = _table(model.rows, model.tail_s, rows)
        self.spread = [log(tail / median) for tail, median in zip(self.tail, self.median, strict=True)]
        self.sure = (self.tail[1] / self.median[1]) ** SURE
        at = np.arange(1, rows + 1)
        per_row = np.asarray(self.median[1:]) / at
        # The least at or below each size: a step in the curve must not end the search early.
        good = per_row <= EFFICIENT * per_row.min()
        self.efficient_rows = int(at[np.argmax(good)])
        spread = self.spread[self.efficient_rows] / TAIL_DEVIATIONS
        self.mean = exp(spread * spread / 2)

    def rows_within(self, seconds: float) -> int:
        """The most rows whose median is at most `seconds`; 0 if even one row takes longer."""
        return max(0, bisect_right(self.median, seconds) - 1)

    def rows_safe_within(self, seconds: float) -> int:
        """The most rows whose tail is at most `seconds`; 0 if even one row takes longer."""
        return max(0, bisect_right(self.tail, seconds) - 1)


def in_batches(seconds: Sequence[float], rows: int, most: int) -> float:
    """Seconds of `rows` rows in batches of `most` one after another and the rest; seconds: by rows."""
    turns, rest = divmod(rows, most)
    return turns * seconds[most] + (seconds[rest] if rest else 0.0)


def _table(knots: tuple[int, ...], seconds: tuple[float, ...], rows: int) -> list[float]:
    """As `LatencyModel.median`, for all of 0 ... rows at once."""
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
