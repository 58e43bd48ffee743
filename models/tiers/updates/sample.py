"""Samples the rows looked up in production: a copy of some batches; the reader counts them."""

from __future__ import annotations

import threading

import numpy as np

from polyrec.models.schema.batch import I64


class Sample:
    """The latest look-ups of every `every`th batch: rows of the fused weight, `size` at most."""

    def __init__(self, size: int = 1 << 20, every: int = 16) -> None:
        self._rows: I64 = np.empty(size, np.int64)
        self.every = every
        self._order = self._batches = self._end = self._held = 0
        self._lock = threading.Lock()

    def note(self, order: int, rows: I64) -> None:
        """Records the look-ups of a batch in an order. A new order starts a new sample."""
        with self._lock:
            self._batches += 1
            if order < self._order or self._batches % self.every:
                return
            if order > self._order:
                self._order, self._end, self._held = order, 0, 0
            rows = rows[-self._rows.size :]
            first = min(rows.size, self._rows.size - self._end)
            self._rows[self._end : self._end + first] = rows[:first]
            self._rows[: rows.size - first] = rows[first:]
            self._end = (self._end + rows.size) % self._rows.size
            self._held = min(self._held + rows.size, self._rows.size)

    def taken(self, order: int) -> I64:
        """Returns a copy of the sample of an order."""
        with self._lock:
            return self._rows[: self._held].copy() if order == self._order else self._rows[:0].copy()
