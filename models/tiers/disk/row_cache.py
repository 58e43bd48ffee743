"""A bounded LRU cache of single rows of a file.

Calibrated popularity does not know rows that are popular only now (a hotel that a session returns to, an
active user), and a page cached for such a row holds about fifteen unpopular ones. So rows are cached
individually and evicted least recently used. The cache is set-associative like a processor's: a row may be in
any of the `WAYS` slots of its set. Finding a batch's rows is one comparison of arrays, and the index takes
ten bytes per slot; a hash table with a linked list would take 24 bytes and a loop. Measurements:
docs/results/tiers.md.
"""

from __future__ import annotations

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.page_cache import NOWHERE

WAYS = 16
LATEST = 1 << 31
PINNED = (1 << 32) - 1
ROW_INDEX_BYTES = 4 + 4 + 2
"""Index bytes per slot: its row, the time of its last use, its pins."""


class RowCache:
    """Slots of rows `0 ... rows - 1` in at most `slots` slots. Not thread-safe.

    pins: int16 [slots]; a pinned slot keeps its row. claims: number of `claim` calls.
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
        """Bytes of the index."""
        return int(self._row.nbytes + self._used.nbytes + self.pins.nbytes)

    def find(self, rows: I64) -> I64:
        """Returns the slot of each row, int64 [n], or NOWHERE."""
        if not self.slots:
            return np.full(rows.size, NOWHERE, np.int64)
        row_set = rows % self._sets
        same = self._row[row_set] == rows[:, None]
        way = same.argmax(axis=1)
        there = same[np.arange(rows.size), way]
        return np.where(there, row_set * self._row.shape[1] + way, NOWHERE)

    def use(self, slots: I64) -> None:
        """Marks slots as used now. slots: int64 [n]; one call per batch."""
        self._now += 1
        if self._now == LATEST:
            self._now >>= 1
            self._used >>= 1
        self._used.reshape(-1)[slots] = self._now

    def claim(self, rows: I64) -> tuple[I64, I64]:
        """Evicts least recently used rows and assigns their slots to new ones.

        rows: int64 [n], distinct, not cached, most popular first. Returns (slots, which), int64 [m] both:
        slot i is for rows[which[i]]. Rows beyond the unpinned slots of their set get none.
        """
        slots = np.full(rows.size, NOWHERE, np.int64)
        if not self.slots:
            return slots[:0], slots[:0]
        ways = self._row.shape[1]
        pins, row, used = self.pins.reshape(-1, ways), self._row.reshape(-1), self._used.reshape(-1)
        left = np.arange(rows.size)
        while left.size:
            row_set = rows[left] % self._sets
            age = self._used[row_set]
            age[pins[row_set] > 0] = PINNED
            way = age.argmin(axis=1)
            fits = age[np.arange(left.size), way] < PINNED
            left, slot = left[fits], (row_set * ways + way)[fits]
            # of several rows of one set the first takes the slot, the others try again
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
