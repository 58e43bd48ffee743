"""Which single rows of a file a bounded cache keeps: those that were looked up last.

Popularity from the past does not know a row that is looked up often today (a hotel that a session comes back
to, a user who is here now), and a page that is cached for such a row holds fifteen that nobody wants. So
rows are kept one by one, least recently used first out. A row may stand in any of the `WAYS` slots of its
set, as in a processor's cache: finding a batch's rows is one comparison of arrays and the books are ten
bytes a slot, where a hash table and a linked list would take 24 and a loop. Measured in docs/tiers.md.
"""

from __future__ import annotations

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.page_cache import NOWHERE

WAYS = 16
LATEST = 1 << 31
PINNED = (1 << 32) - 1
ROW_INDEX_BYTES = 4 + 4 + 2
"""Bytes that the books have for each slot: its row, when that was used, its pins."""


class RowCache:
    """Slots of rows `0 ... rows - 1` in at most `slots` slots. Not thread-safe.

    pins: int16 [slots]; a pinned slot keeps its row. claims: how often rows were put here.
    """

    def __init__(self, rows: int, slots: int) -> None:
        ways = min(WAYS, max(slots, 1))
        self._sets = slots // ways
        number = np.int32 if rows < 2**31 else np.int64
        self._row = np.full((self._sets, ways), NOWHERE, number)
        self._used = np.zeros((self._sets, ways), np.uint32)
        self.pins = np.zeros(self._sets * ways, np.int16)
        self._now, self.claims = 1, 0  # an empty slot was used at 0, before any other

    @property
    def slots(self) -> int:
        return self.pins.size

    @property
    def nbytes(self) -> int:
        """Bytes of the bookkeeping."""
        return int(self._row.nbytes + self._used.nbytes + self.pins.nbytes)

    def find(self, rows: I64) -> I64:
        """The slot of each row, or NOWHERE: int64 [n]."""
        if not self.slots:
            return np.full(rows.size, NOWHERE, np.int64)
        own = rows % self._sets
        same = self._row[own] == rows[:, None]
        way = same.argmax(axis=1)
        there = same[np.arange(rows.size), way]
        return np.where(there, own * self._row.shape[1] + way, NOWHERE)

    def use(self, slots: I64) -> None:
        """These slots' rows are looked up now. slots: int64 [n]; one call a batch."""
        self._now += 1
        if self._now == LATEST:
            self._now >>= 1
            self._used >>= 1
        self._used.reshape(-1)[slots] = self._now

    def claim(self, rows: I64) -> tuple[I64, I64]:
        """Puts rows that are not here in the place of those used longest ago.

        rows: int64 [n], distinct, the most wanted first -> (slots, which), int64 [m] both: slot i is for
        rows[which[i]]. Of a set's rows more than it has slots that are not pinned find no place.
        """
        slots = np.full(rows.size, NOWHERE, np.int64)
        if not self.slots:
            return slots[:0], slots[:0]
        ways = self._row.shape[1]
        pins, row, used = self.pins.reshape(-1, ways), self._row.reshape(-1), self._used.reshape(-1)
        left = np.arange(rows.size)
        while left.size:
            own = rows[left] % self._sets
            age = self._used[own]
            age[pins[own] > 0] = PINNED
            way = age.argmin(axis=1)
            fits = age[np.arange(left.size), way] < PINNED
            left, slot = left[fits], (own * ways + way)[fits]
            # several rows of one set: the most wanted takes the slot, the others try again
            turn = np.arange(left.size)
            row[slot[::-1]] = turn[::-1]
            taken = row[slot] == turn
            slot, won, left = slot[taken], left[taken], left[~taken]
            slots[won] = slot
            row[slot] = rows[won]
            used[slot] = self._now
            self.pins[slot] += 1
        which = np.flatnonzero(slots != NOWHERE)
        slots = slots[which]
        self.pins[slots] -= 1
        self.claims += 1
        return slots, which
