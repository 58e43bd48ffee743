"""Collects rows in staged pages until they enter the row cache, several batches at a time.

Entering is a chain of array operations that takes about as long for one query's 25 rows as for 500. Until
then the rows are gathered from their pages, which stay pinned. Waiting reduces the processor time of a query
with 25 missing rows of 416 from 519 to 390 us (docs/results/popular-first.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64

MAX_ROWS = 512
"""Rows that wait at most: the batch that has them enter takes some 0.5 ms more."""
PAGE_SHARE = 0.125
"""Maximum share of the page slots that waiting rows pin."""


class WaitingRows:
    """Lookups of uncached rows whose pages are in memory. Not thread-safe.

    pins: int32 [page slots]; each waiting lookup pins its page once.
    """

    def __init__(self, pins: NDArray[np.int32]) -> None:
        self._pins = pins
        self._most = min(MAX_ROWS, int(pins.size * PAGE_SHARE))
        self._parts: list[tuple[I64, I64, I64]] = []
        self._count = 0

    @property
    def many(self) -> bool:
        """Whether enough rows wait to enter now."""
        return self._count > self._most

    def add(self, rows: I64, slots: I64, places: I64) -> None:
        """Adds lookups, int64 [n] each: the row, the slot of its page, its position in the page."""
        np.add.at(self._pins, slots, 1)
        self._parts.append((rows, slots, places))
        self._count += rows.size

    def take(self) -> tuple[I64, I64, I64, I64]:
        """Removes and unpins all; returns (distinct rows, slots, positions, lookups of each), most wanted
        first.
        """
        rows, slots, places = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        self._parts.clear()
        self._count = 0
        np.subtract.at(self._pins, slots, 1)
        rows, first, lookups = np.unique(rows, return_index=True, return_counts=True)
        order = np.argsort(-lookups, kind="stable")
        first = first[order]
        return rows[order], slots[first], places[first], lookups[order]
