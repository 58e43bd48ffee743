"""A bounded cache of pages: W-TinyLFU (Einziger, Friedman, Manes, 2017) with whole-array operations.

Every page has a count of recent accesses, halved periodically, and a slot or none. A page that is read enters
a FIFO window, so that there is room for new and prefetched pages. When it leaves the window it replaces the
least accessed of some pages sampled from the main part if it was accessed more often, else it is evicted: a
page that is read once never displaces one that is read often. Page numbers are dense, so the counts are exact
and need no sketch; they start from the calibration's counts of the page's rows. A batch takes a few array
operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64

NOWHERE = -1
DRAWN = 5
"""Pages sampled from the main part for each page that leaves the window."""
MOST_HEAT = 255
PAGE_INDEX_BYTES = 4 + 1
"""Index bytes per page of the file, cached or not: its slot and its heat."""
SLOT_INDEX_BYTES = 4 + 4 + 8 + 8
"""Index bytes per slot: its page, its pins, its place in window or main part, and the ticket of its read."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Parameters of a disk tier's cache.

    window: share of the page slots in the window. period: counts are halved after `period` times the slots
    accesses. rows: share of the cache for single rows (polyrec.models.tiers.disk.row_cache) instead of pages.
    In a cache of at least `roomy` slots, up to half of it, but at most `ahead` slots, is left to pages for
    prefetching, and the window is the whole page cache: the row cache keeps repeated rows, so choosing pages
    does not pay.
    """

    window: float = 0.5
    period: float = 16.0
    rows: float = 0.8
    roomy: int = 2048
    ahead: int = 4096

    def row_slots(self, slots: int) -> int:
        """Number of a cache's slots that hold single rows."""
        most = int(slots * self.rows)
        return most if slots < self.roomy else min(most, max(slots - self.ahead, slots // 2))

    def for_pages(self, slots: int) -> CacheSettings:
        """Returns the parameters for the pages of a cache with this number of slots."""
        return self if slots < self.roomy else replace(self, window=1.0)


DEFAULT = CacheSettings()


class PageCache:
    """Slots of `pages` pages in `slots` slots. Not thread-safe.

    heat: float [pages], expected accesses in any unit, or None.
    Public arrays: slot_of_page int32 [pages], NOWHERE if not cached; page_of_slot int32 [slots].
    """

    def __init__(
        self,
        pages: int,
        slots: int,
        heat: NDArray[np.float64] | None = None,
        settings: CacheSettings = DEFAULT,
        seed: int = 0,
    ) -> None:
        self.slots = slots
        self.slot_of_page = np.full(pages, NOWHERE, np.int32)
        self.page_of_slot = np.full(slots, NOWHERE, np.int32)
        self.pins = np.zeros(slots, np.int32)
        self.heat = np.zeros(pages, np.uint8)
        self._period = max(int(settings.period * slots), 1)
        if heat is not None and pages and heat.sum() > 0:
            # the counts that one period of such accesses would leave
            expected = heat * (self._period / heat.sum())
            self.heat = np.minimum(np.rint(expected), MOST_HEAT).astype(np.uint8)
        self._window = np.arange(min(max(round(slots * settings.window), 1), slots), dtype=np.int64)
        self._main = np.arange(self._window.size, slots, dtype=np.int64)
        self._head = 0
        self._random = np.random.default_rng(seed)
        self._accesses = 0
        self._halved = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        arrays = (self.slot_of_page, self.page_of_slot, self.pins, self.heat, self._window, self._main)
        return sum(int(a.nbytes) for a in arrays)

    def fill(self, pages: I64) -> I64:
        """Fills an empty cache with the first pages; returns their slots.

        pages: hottest first. The coldest of them are in the window.
        """
        slots = np.concatenate((self._main, self._window))[: pages.size]
        self._put(pages[: slots.size], slots)
        return slots

    def touch(self, pages: I64) -> None:
        """Counts the accesses of a batch. pages: int64 [n], distinct; repeats within a batch do not count."""
        if not self._main.size:
            return  # without a main part the counts are not used
        heat = self.heat[pages]
        self.heat[pages] = heat + (heat < MOST_HEAT)
        self._accesses += pages.size
        # in slices: halving every count at once would delay one request
        due = min(self._accesses * self.heat.size // self._period, self._halved + self.heat.size)
        if due - self._halved > 4096 or due == self.heat.size:
            self.heat[self._halved : due] >>= 1
            self._halved = due
            if due >= self.heat.size:
                self._halved = self._accesses = 0

    def claim(self, pages: I64) -> I64:
        """Evicts pages and assigns their slots to new ones; returns the slots.

        pages: int64 [n], distinct, not cached. Returns fewer slots than pages if all others are pinned.
        """
        freed = self._free(pages.size)
        old = self.page_of_slot[freed]
        self.slot_of_page[old[old != NOWHERE]] = NOWHERE
        self._put(pages[: freed.size], freed)
        return freed

    def drop(self, pages: I64) -> None:
        """Removes pages whose slots do not hold the content of the file."""
        pages = pages[pages != NOWHERE]
        slots = self.slot_of_page[pages]
        self.page_of_slot[slots[slots != NOWHERE]] = NOWHERE
        self.slot_of_page[pages] = NOWHERE

    def _put(self, pages: I64, slots: I64) -> None:
        self.slot_of_page[pages] = slots
        self.page_of_slot[slots] = pages

    def _free(self, count: int) -> I64:
        """Returns evicted slots, which become the newest of the window."""
        size = self._window.size
        order = (self._head + np.arange(size if count > size // 2 else min(4 * count + 16, size))) % size
        free = np.flatnonzero(self.pins[self._window[order]] == 0)[:count]
        if free.size < count and order.size < size:
            order = (self._head + np.arange(size)) % size
            free = np.flatnonzero(self.pins[self._window[order]] == 0)[:count]
        places = order[free]
        leaving = self._window[places]
        self._head = int((self._head + (free[-1] + 1 if free.size else 0)) % size)
        if self._main.size:
            leaving = self._settle(leaving)
            self._window[places] = leaving
        if leaving.size == count or not self._main.size:
            return leaving
        # more new pages than the window holds: the others replace the coldest pages of the main part
        unpinned = self._main[self.pins[self._main] == 0]
        more = unpinned[np.argsort(self._heat_of(unpinned), kind="stable")[: count - leaving.size]]
        return np.concatenate((leaving, more))

    def _settle(self, leaving: I64) -> I64:
        """Returns, for each slot leaving the window, itself or that of a colder main page that it
        replaces.
        """
        drawn = self._random.integers(0, self._main.size, (leaving.size, DRAWN), np.int32)
        slots = self._main[drawn]
        heat = self._heat_of(slots)
        heat[self.pins[slots] > 0] = MOST_HEAT + 1
        coldest = heat.argmin(axis=1)
        rows = np.arange(leaving.size)
        victim, least = drawn[rows, coldest], heat[rows, coldest]
        better = np.flatnonzero((self._heat_of(leaving) > least) & (self.page_of_slot[leaving] != NOWHERE))
        # of two with the same victim the first replaces it
        chosen, first = np.unique(victim[better], return_index=True)
        better = better[first]
        freed = leaving.copy()
        freed[better] = self._main[chosen]
        self._main[chosen] = leaving[better]
        return freed

    def _heat_of(self, slots: I64) -> NDArray[np.int16]:
        """Returns the heat of the pages in slots; an empty slot is colder than any page."""
        pages = self.page_of_slot[slots]
        heat = self.heat[pages].astype(np.int16) if self.heat.size else np.zeros(pages.shape, np.int16)
        heat[pages == NOWHERE] = -1
        return heat
