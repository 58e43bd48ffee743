"""Which pages of a file a bounded cache keeps: W-TinyLFU (Einziger, Friedman, Manes, 2017), in whole arrays.

Every page has a count of recent accesses, halved as time goes on, and a slot where it is cached or none. A
page that is read enters a window, first in, first out, so that there is room for what was just read or read
ahead. Where it leaves the window it must have been accessed more often than the least accessed of some pages
drawn from the main part, or it goes instead of that one: a page that is read once never displaces one that
is read often. Page numbers are dense, so the counts are exact and need no sketch, and they start from what
the calibration says of the page's rows instead of from nothing. A batch is a few array operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64

NOWHERE = -1
DRAWN = 5
"""Pages of the main part that a page leaving the window is compared with."""
MOST_HEAT = 255
PAGE_INDEX_BYTES = 4 + 1
"""Bytes that the books have for each page of the file, cached or not: its slot and its heat."""
SLOT_INDEX_BYTES = 4 + 4 + 8 + 8
"""Bytes for each slot: its page, its pins, its place in window or main part, and the ticket of its read."""


@dataclass(frozen=True, slots=True)
class Admission:
    """How a cache chooses. window: share of the slots that newcomers hold. period: the counts are halved
    after as many accesses as `period` times the slots. rows: share of a disk tier's cache that keeps single
    rows (polyrec.models.tiers.disk.row_cache) instead of pages; less in a cache of `roomy` slots or more,
    where up to half of it, but no more than `ahead`, is left to pages that are read before their batch's
    turn, and no page is kept longer than others: choosing costs as much as it saves, since rows that are
    wanted again are kept singly."""

    window: float = 0.5
    period: float = 16.0
    rows: float = 0.8
    roomy: int = 2048
    ahead: int = 4096

    def row_slots(self, slots: int) -> int:
        """How many of a cache's slots are given to single rows."""
        most = int(slots * self.rows)
        return most if slots < self.roomy else min(most, max(slots - self.ahead, slots // 2))

    def for_pages(self, slots: int) -> Admission:
        """How the pages of a cache of so many slots are chosen."""
        return self if slots < self.roomy else replace(self, window=1.0)


DEFAULT = Admission()


class PageCache:
    """Slots of `pages` pages in `slots` slots. Not thread-safe.

    heat: float [pages], expected accesses in any unit, or None.
    Arrays that others read: slot_of_page int32 [pages], NOWHERE if not cached; page_of_slot int32 [slots].
    """

    def __init__(
        self,
        pages: int,
        slots: int,
        heat: NDArray[np.float64] | None = None,
        admission: Admission = DEFAULT,
        seed: int = 0,
    ) -> None:
        self.slots = slots
        self.slot_of_page = np.full(pages, NOWHERE, np.int32)
        self.page_of_slot = np.full(slots, NOWHERE, np.int32)
        self.pins = np.zeros(slots, np.int32)
        self.heat = np.zeros(pages, np.uint8)
        self._period = max(int(admission.period * slots), 1)
        if heat is not None and pages and heat.sum() > 0:
            # as if one period had passed: the counts that the cache would stand at by itself
            expected = heat * (self._period / heat.sum())
            self.heat = np.minimum(np.rint(expected), MOST_HEAT).astype(np.uint8)
        self._window = np.arange(min(max(round(slots * admission.window), 1), slots), dtype=np.int64)
        self._main = np.arange(self._window.size, slots, dtype=np.int64)
        self._head = 0
        self._random = np.random.default_rng(seed)
        self._accesses = 0
        self._halved = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the bookkeeping."""
        arrays = (self.slot_of_page, self.page_of_slot, self.pins, self.heat, self._window, self._main)
        return sum(int(a.nbytes) for a in arrays)

    def fill(self, pages: I64) -> I64:
        """Puts the first pages, at most as many as there are slots, into an empty cache; gives their slots.

        pages: hottest first. The least hot of them stand in the window.
        """
        slots = np.concatenate((self._main, self._window))[: pages.size]
        self._put(pages[: slots.size], slots)
        return slots

    def touch(self, pages: I64) -> None:
        """Counts accesses of a batch. pages: int64 [n], distinct: how often a batch has one tells little."""
        if not self._main.size:
            return  # nothing is chosen by them
        heat = self.heat[pages]
        self.heat[pages] = heat + (heat < MOST_HEAT)
        self._accesses += pages.size
        # a slice at a time: halving every count at once would hold up one request
        due = min(self._accesses * self.heat.size // self._period, self._halved + self.heat.size)
        if due - self._halved > 4096 or due == self.heat.size:
            self.heat[self._halved : due] >>= 1
            self._halved = due
            if due >= self.heat.size:
                self._halved = self._accesses = 0

    def claim(self, pages: I64) -> I64:
        """Slots for pages that are not cached, int64 [n], distinct -> int64 [n or less].

        Pages are evicted for them. Fewer slots than pages: all others are pinned.
        """
        freed = self._free(pages.size)
        old = self.page_of_slot[freed]
        self.slot_of_page[old[old != NOWHERE]] = NOWHERE
        self._put(pages[: freed.size], freed)
        return freed

    def drop(self, pages: I64) -> None:
        """Forgets pages: what their slots hold is not what the file holds."""
        pages = pages[pages != NOWHERE]
        slots = self.slot_of_page[pages]
        self.page_of_slot[slots[slots != NOWHERE]] = NOWHERE
        self.slot_of_page[pages] = NOWHERE

    def _put(self, pages: I64, slots: I64) -> None:
        self.slot_of_page[pages] = slots
        self.page_of_slot[slots] = pages

    def _free(self, count: int) -> I64:
        """Slots to be used anew; all are in the window afterwards, as its newest."""
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
        # more newcomers than the window holds: the rest displaces pages of the main part, and stays there
        unpinned = self._main[self.pins[self._main] == 0]
        more = unpinned[np.argsort(self._heat_of(unpinned), kind="stable")[: count - leaving.size]]
        return np.concatenate((leaving, more))

    def _settle(self, leaving: I64) -> I64:
        """For each slot leaving the window: itself, or that of a colder main page whose place it takes."""
        drawn = self._random.integers(0, self._main.size, (leaving.size, DRAWN), np.int32)
        slots = self._main[drawn]
        heat = self._heat_of(slots)
        heat[self.pins[slots] > 0] = MOST_HEAT + 1
        coldest = heat.argmin(axis=1)
        rows = np.arange(leaving.size)
        victim, least = drawn[rows, coldest], heat[rows, coldest]
        better = np.flatnonzero((self._heat_of(leaving) > least) & (self.page_of_slot[leaving] != NOWHERE))
        # two that chose the same victim: the first takes it
        chosen, first = np.unique(victim[better], return_index=True)
        better = better[first]
        freed = leaving.copy()
        freed[better] = self._main[chosen]
        self._main[chosen] = leaving[better]
        return freed

    def _heat_of(self, slots: I64) -> NDArray[np.int16]:
        """Of the pages in the slots; an empty slot is colder than any."""
        pages = self.page_of_slot[slots]
        heat = self.heat[pages].astype(np.int16) if self.heat.size else np.zeros(pages.shape, np.int16)
        heat[pages == NOWHERE] = -1
        return heat
