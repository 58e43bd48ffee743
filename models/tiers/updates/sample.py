"""Samples the rows looked up in production by copying some batches; the reader counts them."""

from __future__ import annotations

import threading

import numpy as np

from polyrec.models.schema.batch import I64

SIZE = 1 << 20


class Sample:
    """The latest lookups of every `every`th batch, as rows of the fused weight, at most `size`.

    every: 0 until a sample is wanted; nothing is copied or held until then.
    """

    def __init__(self, size: int = SIZE, every: int = 0) -> None:
        self._size = size
        self._rows: I64 = np.empty(0, np.int64)
        self.every = every
        self._order = self._batches = self._end = self._held = self._seen = 0
        self._lock = threading.Lock()

    def note(self, order: int, rows: I64) -> None:
        """Records a batch's lookups in a row order. A new order starts a new sample."""
        if not self.every:
            return
        with self._lock:
            self._batches += 1
            if order < self._order:
                return
            if order > self._order:
                self._order, self._end, self._held, self._seen = order, 0, 0, 0
            self._seen += rows.size
            if self._batches % self.every:
                return
            if not self._rows.size:
                self._rows = np.empty(self._size, np.int64)
            rows = rows[-self._rows.size :]
            first = min(rows.size, self._rows.size - self._end)
            self._rows[self._end : self._end + first] = rows[:first]
            self._rows[: rows.size - first] = rows[first:]
            self._end = (self._end + rows.size) % self._rows.size
            self._held = min(self._held + rows.size, self._rows.size)

    def take(self, order: int) -> tuple[I64, int]:
        """Returns the sample of an order and the number of lookups it represents; starts a new sample."""
        with self._lock:
            if order != self._order:
                return self._rows[:0].copy(), 0
            taken = self._rows[: self._held].copy(), self._seen
            self._end = self._held = self._seen = 0
            return taken
