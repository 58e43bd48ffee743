"""Tracks pages that are being read or wait for a batch: a FIFO queue of page slots.

Pages are evicted in order of arrival, because reuse is the row cache's job. They are few, so a dictionary
finds them: for one query's pages it takes a tenth of the time of an array-based hash table.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.row_index import NOWHERE

ENTRY_BYTES = 172
"""Bytes of an entry of the dictionary with its two numbers, at most (when it has just grown)."""
PAGE_SLOT_BYTES = ENTRY_BYTES + 8 + 4 + 8 + 1
"""Bytes for each slot beside its page: index, its page, pins, the ticket of its read, whether prefetched."""


class StagedPages:
    """Slots of pages. Not thread-safe.

    pins: int32 [slots]; a pinned slot keeps its page.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._slot_of_page: dict[int, int] = {}
        self._page = np.full(slots, NOWHERE, np.int64)
        self.pins = np.zeros(slots, np.int32)
        self._hand = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        return int(self.slots * ENTRY_BYTES + self._page.nbytes + self.pins.nbytes)

    def find(self, pages: I64) -> I64:
        """Returns the slot of each page, int64 [n], or NOWHERE."""
        slots = map(self._slot_of_page.get, pages.tolist(), repeat(NOWHERE))
        return np.fromiter(slots, np.int64, pages.size)

    def claim(self, pages: I64) -> I64:
        """Assigns the oldest unpinned slots to new pages; returns the slots of the first m pages, int64 [m].

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
            self.drop(free)
            self._page[free] = pages[: free.size]
            self._slot_of_page.update(zip(pages.tolist(), free.tolist(), strict=False))
        return free

    def drop(self, slots: I64) -> None:
        """Removes pages whose slots do not hold the file's content. slots: distinct."""
        for page in self._page[slots].tolist():
            self._slot_of_page.pop(page, None)
        self._page[slots] = NOWHERE
