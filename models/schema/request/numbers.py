"""Ranks and statistics of numbers in their requests, computed for several numbers at once."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.request.rows import Bools, Numbers, Places


class NumberFeatures:
    """Computes ranks and statistics. x: float64 [numbers, rows], NaN where missing."""

    def __init__(self, x: F64, place: Places) -> None:
        self.x, self._place = x, place
        self._known: dict[tuple[int, str], Numbers] = {}
        self._sorted: dict[int, tuple[F64, I64 | None]] = {}

    @cached_property
    def _missing(self) -> Bools:
        missing: Bools = np.isnan(self.x)
        return missing

    @cached_property
    def _count(self) -> I64:
        """How many values are known, int64 [numbers, requests]."""
        count: I64 = np.add.reduceat(~self._missing, self._place.starts, axis=1, dtype=np.int64)
        return count

    @cached_property
    def _mean(self) -> F64:
        """The means, [numbers, rows] or [numbers, 1]; without values 0 / 0, NaN."""
        filled = np.where(self._missing, 0.0, self.x)
        return self._place.spread(np.add.reduceat(filled, self._place.starts, axis=1) / self._count)

    def _in_order(self, number: int) -> tuple[F64, I64 | None]:
        """Sorts rows by request and value, NaN last. Returns (values, rows); no rows if of one request."""
        if number not in self._sorted:
            x = self.x[number]
            if self._place.request is None:
                self._sorted[number] = np.sort(x), None
            else:
                order = np.lexsort((x, self._place.request))
                self._sorted[number] = x[order], order
        return self._sorted[number]

    def statistic(self, number: int, name: str) -> Numbers:
        """Returns a statistic of one number, [rows] or [1], NaN without values."""
        key = number, name
        if key not in self._known:
            self._known[key] = self._computed(number, name)
        return self._known[key]

    def _computed(self, number: int, name: str) -> Numbers:
        place, starts = self._place, self._place.starts
        if name in ("previous", "next"):
            return place.shifted(self.x[number], 1 if name == "previous" else -1)
        if name == "mean":
            mean: F64 = self._mean[number]
            return mean
        values, _ = self._in_order(number)
        # without values, the first of the sorted ones is NaN
        if name == "minimum":
            return place.spread(values[starts])
        last = np.maximum(self._count[number] - 1, 0)
        if name == "maximum":
            return place.spread(values[starts + last])
        low, high = values[starts + last // 2], values[starts + (last + 1) // 2]
        return place.spread(low + (high - low) * 0.5)

    def rank(self, number: int) -> F64:
        """Returns how many values are smaller, equal ones sharing the mean of their ranks: [rows], NaN if
        missing.
        """
        x, (values, order) = self.x[number], self._in_order(number)
        if order is None:
            low, high = values.searchsorted(x), values.searchsorted(x, "right")
            # x - x is 0, or NaN where x is NaN
            single: F64 = (low + high - 1) * 0.5 + (x - x)
            return single
        head = np.empty(x.size, bool)
        np.not_equal(values[1:], values[:-1], out=head[1:])
        head[self._place.starts] = True
        heads = head.nonzero()[0]
        sizes = np.diff(heads, append=x.size)
        ranks = np.empty(x.size)
        # a request's rows occupy the same positions before and after sorting
        ranks[order] = (self._place.index[heads] + (sizes - 1) * 0.5).repeat(sizes)
        ranks += x - x
        return ranks
