"""Latency model of a path: median and tail seconds of a batch as functions of its rows.

Both are piecewise linear between knots, do not fall with rows, and continue beyond the last knot with its
slope. Routing uses a table built from the model (routing/latency/latency_table.py).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from polyrec.models.files import Strict

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
Knots = tuple[float, ...]


class LatencyModel(Strict):
    """Service time of one batch on one lane, from encoding to probabilities.

    rows: knots, ascending, at least one.
    median_s, tail_s: seconds at each knot, non-descending. tail_s is the 99th percentile and at least the
        median.
    """

    rows: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    median_s: tuple[Seconds, ...]
    tail_s: tuple[Seconds, ...]

    @model_validator(mode="after")
    def _is_a_curve(self) -> LatencyModel:
        if not len(self.rows) == len(self.median_s) == len(self.tail_s):
            raise ValueError("rows, median_s and tail_s differ in length")
        if any(a >= b for a, b in pairwise(self.rows)):
            raise ValueError("rows do not ascend")
        for name in ("median_s", "tail_s"):
            if any(a > b for a, b in pairwise(getattr(self, name))):
                raise ValueError(f"{name} falls as rows grow")
        if any(m > t for m, t in zip(self.median_s, self.tail_s, strict=True)):
            raise ValueError("tail_s is below median_s")
        return self

    def median(self, rows: int) -> float:
        """Returns the median seconds of a batch of `rows` rows."""
        return _at(self.rows, self.median_s, rows)

    def tail(self, rows: int) -> float:
        """Returns the 99th percentile in seconds of a batch of `rows` rows."""
        return _at(self.rows, self.tail_s, rows)


def _at(rows: tuple[int, ...], seconds: Knots, at: int) -> float:
    """Interpolates the curve, which is flat below the first knot."""
    right = bisect_left(rows, at)
    if right == 0:
        return seconds[0]
    if right == len(rows):
        if right == 1:
            return seconds[0] * at / rows[0]
        right -= 1
    left = right - 1
    share = (at - rows[left]) / (rows[right] - rows[left])
    return seconds[left] + share * (seconds[right] - seconds[left])
