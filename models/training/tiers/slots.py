"""Tracks the rows in a training's row cache, and chooses which to evict next.

Rows are evicted in the order of the file, by a clock sweep, instead of by last use, so that the changed rows
of a page are written together, and neighboring pages in one run. A row used again since the last round stays
for another round. Rows of steps to come are never evicted.
"""

from __future__ import annotations

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.row_index import INDEX_BYTES, NOWHERE, RowIndex

SPARSE = 2
"""Index entries per slot, in units of its usual load: hardly any row finds both buckets full."""
SLOT_BYTES = SPARSE * INDEX_BYTES + 8 + 4 + 1
"""Memory for each slot in addition to its record: index, row, last step, whether it was used again."""


class SlotDirectory:
    """The slots of a cache of rows 0 ... rows - 1. Not thread-safe.

    Steps are numbered. Rows of the first unfinished step (`first`) and of later steps are not evicted.
    """

    def __init__(self, rows: int, slots: int) -> None:
        self.slots = slots
        self.row = np.full(slots, NOWHERE, np.int64)
        self._rows = rows
        self._last = np.full(slots, NOWHERE, np.int32)
        self._again = np.zeros(slots, bool)
        self._index = RowIndex(rows, SPARSE * slots, slots)
        # the few rows that do not fit the index
        self._left_out = np.empty(0, np.int64)
        self._free = np.arange(slots)[::-1].copy()
        self._free_count = slots
        self._hand = 0

    @property
    def free(self) -> int:
        """Number of slots without a row."""
        return self._free_count

    def find(self, rows: I64) -> I64:
        """Returns the slot of each row, int64 [n], or NOWHERE. Rows may repeat."""
        slots = self._index.find(rows)
        if self._left_out.size:
            at = np.flatnonzero(slots == NOWHERE)
            at = at[np.isin(rows[at], self.row[self._left_out])]
            order = np.argsort(self.row[self._left_out])
            own = self._left_out[order]
            slots[at] = own[np.searchsorted(self.row[own], rows[at])]
        return slots

    def use(self, slots: I64, step: int) -> None:
        """Marks slots as used by a step. slots: int64 [n], may repeat."""
        self._last[slots] = step
        self._again[slots] = True

    def add(self, rows: I64, step: int) -> I64:
        """Assigns free slots to rows that a step uses; returns the slots. rows: int64 [n], new and
        distinct.
        """
        slots = self._free[self._free_count - rows.size : self._free_count]
        self._free_count -= rows.size
        self.row[slots], self._last[slots], self._again[slots] = rows, step, False
        stored = self._index.put(rows, slots)
        if not stored.all():
            self._left_out = np.concatenate((self._left_out, slots[~stored]))
        return slots.copy()

    def to_evict(self, count: int, first: int) -> I64:
        """Returns the slots to evict next, by ascending row: `count`, or all that may be evicted."""
        may = np.flatnonzero((self.row != NOWHERE) & (self._last < first))
        distance = (self.row[may] - self._hand) % self._rows
        found = [may[:0]]
        left = min(count, may.size)
        # every pass clears the marks of rows used again, so the second round of the sweep ends
        while left:
            near = np.argpartition(distance, left - 1)[:left]
            self._hand = int(self.row[may[near[distance[near].argmax()]]]) + 1
            slots = may[near]
            again = self._again[slots]
            self._again[slots] = False
            found.append(slots[~again])
            left -= found[-1].size
            distance[near[again]] += self._rows
            kept = np.ones(may.size, bool)
            kept[near[~again]] = False
            may, distance = may[kept], distance[kept]
        slots = np.concatenate(found)
        return slots[np.argsort(self.row[slots])]

    def remove(self, slots: I64) -> None:
        """Frees slots."""
        self._index.remove(slots)
        if self._left_out.size:
            self._left_out = self._left_out[~np.isin(self._left_out, slots)]
        self.row[slots] = NOWHERE
        self._free[self._free_count : self._free_count + slots.size] = slots
        self._free_count += slots.size
