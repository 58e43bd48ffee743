"""Which single rows of a file a bounded cache keeps: those that were looked up last.

Popularity from the past does not know a row that is looked up often today (a hotel that a session comes back
to, a user who is here now), and a page that is cached for such a row holds fifteen that nobody wants. So
rows are kept one by one, least recently used first out. A row may stand in any of the `WAYS` slots of its
set, as in a processor's cache: finding a batch's rows is one comparison of arrays and the books are ten
bytes a slot, where a hash table and a linked list would take 24 and a loop. Measured in docs/tiers.md.
"""

from __future__ import annotations

import numpy as np

from models.batch import I64
from models.embeddings.tiers.pages import NOWHERE

WAYS = 16
LATEST = 1 << 31
ROW_BOOKS = 4 + 4 + 2
"""Bytes that the books have for each slot: its row, when that was used, its pins."""


class RecentRows:
    """Places of rows `0 ... rows - 1` in at most `slots` slots. Not thread-safe.

    pins: int16 [slots]; a pinned slot keeps its row.
    """

    def __init__(self, rows: int, slots: int) -> None:
        ways = min(WAYS, max(slots, 1))
        self._sets = slots // ways
        number = np.int32 if rows < 2**31 else np.int64
        self._row = np.full((self._sets, ways), NOWHERE, number)
        self._used = np.zeros((self._sets, ways), np.uint32)
        self.pins = np.zeros(self._sets * ways, np.int16)
        self._now = 0

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
        nothing = np.empty(0, np.int64)
        if not self.slots or not rows.size:
            return nothing, nothing
        ways = self._row.shape[1]
        order = np.argsort(rows % self._sets, kind="stable")
        sets, start, count = np.unique(rows[order] % self._sets, return_index=True, return_counts=True)
        age = self._used[sets].astype(np.int64)
        pinned = self.pins.reshape(-1, ways)[sets] > 0
        age[self._row[sets] == NOWHERE] = -1
        age[pinned] = np.iinfo(np.int64).max
        oldest = np.argsort(age, axis=1, kind="stable")
        free = ways - pinned.sum(axis=1)
        group = np.repeat(np.arange(sets.size), count)
        turn = np.arange(rows.size) - start[group]
        fits = turn < free[group]
        group, turn, which = group[fits], turn[fits], order[fits]
        slots = sets[group] * ways + oldest[group, turn]
        self._row.reshape(-1)[slots] = rows[which]
        self._used.reshape(-1)[slots] = self._now
        return slots, which
