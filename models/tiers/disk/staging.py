"""Pages of a file that are being read or wait for a batch: a FIFO queue of page slots.

Repeated rows are the row cache's concern, so pages go in the order in which they came.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.row_index import INDEX_BYTES, NOWHERE, RowIndex

PAGE_SLOT_BYTES = INDEX_BYTES + 4 + 8 + 1
"""Bytes for each slot beside its page: index, pins, the ticket of its read, whether it is prefetched."""


class StagedPages:
    """Slots of pages `0 ... pages - 1`. Not thread-safe.

    pins: int32 [slots]; a pinned slot keeps its page.
    """

    def __init__(self, pages: int, slots: int) -> None:
        self.slots = slots
        self._index = RowIndex(pages, slots, slots)
        self.pins = np.zeros(slots, np.int32)
        self._hand = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        return int(self._index.nbytes + self.pins.nbytes)

    def find(self, pages: I64) -> I64:
        """Returns the slot of each page, int64 [n], or NOWHERE."""
        return self._index.find(pages)

    def holds(self, slots: I64) -> NDArray[np.bool_]:
        """Returns which slots have a page that `find` finds, bool [n]."""
        held: NDArray[np.bool_] = self._index.key(slots) != NOWHERE
        return held

    def claim(self, pages: I64) -> I64:
        """Assigns the oldest unpinned slots to new pages; returns the slots, int64 [m], of the first m pages.

        pages: int64 [n], distinct, without slots. m < n if all other slots are pinned.
        """
        count = min(pages.size, self.slots)
        order: I64 = (self._hand + np.arange(min(2 * count, self.slots))) % self.slots
        free: I64 = order[self.pins.take(order) == 0][:count]
        if free.size < count and order.size < self.slots:
            order = (self._hand + np.arange(self.slots)) % self.slots
            free = order[self.pins.take(order) == 0][:count]
        if free.size:
            self._hand = int(free[-1] + 1) % self.slots
            self._index.remove(free)
            # a page that finds no room in the index is read again for the next batch
            self._index.put(pages[: free.size], free)
        return free

    def drop(self, slots: I64) -> None:
        """Removes the pages of slots that do not hold the content of the file."""
        self._index.remove(slots)
