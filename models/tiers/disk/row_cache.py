"""Implements a bounded cache of single rows: S3-FIFO (Yang et al., SOSP 2023) in whole-array operations.

New rows enter a small FIFO queue, a tenth of the slots. A row that leaves it moves to the main queue if a
later batch looked it up, else it is evicted. The main queue is a clock: its hand passes rows with uses,
taking one use from each, and evicts rows without uses. Rows evicted from the small queue are remembered for a
while; one that returns enters the main queue at once. So rows looked up once do not displace rows looked up
often, and a cache of stale rows renews itself quickly.

A batch is processed as a whole: all its rows are looked up first, then the missing ones enter. For a
comparison with other policies, and with S3-FIFO one lookup at a time, see docs/results/tier-policies.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.row_index import INDEX_BYTES, NOWHERE, WAYS, RecentRows, RowIndex

SMALL = 0.1
"""Share of the slots in the small queue."""
MAX_USES = 3
"""Uses that are counted of a row."""
SLOT_BYTES = INDEX_BYTES + (4 + 1 / WAYS) + 4 + 1 + 2
"""Bytes for each slot beside its row: index, one remembered row, place in a queue, uses, pins."""
UNUSED_SLOT_BYTES = 4 + 1 + 2
"""Bytes for each slot before `first` that cannot join."""


class RowCache:
    """Slots for rows `0 ... rows - 1`. Not thread-safe.

    slots: initial number of slots, which are numbered from `first`.
    joining: number of the slots `0 ... first - 1` that may `join` later.
    pins: int16 [first + slots]; a pinned slot keeps its row.
    returned: number of rows claimed again soon after their eviction.
    """

    def __init__(self, rows: int, slots: int, first: int = 0, joining: int = 0) -> None:
        max_keys = slots + joining
        self.index = RowIndex(rows, max_keys, first + slots)
        self._remembered = RecentRows(rows, max_keys)
        small = min(max(round(slots * SMALL), 1), slots)
        # in order of arrival, starting at the hand
        self._small: NDArray[np.int32] = np.arange(first, first + small, dtype=np.int32)
        self._main: NDArray[np.int32] = np.arange(first + small, first + slots, dtype=np.int32)
        self._small_hand = self._main_hand = 0
        self._vacant = self._main.size
        self._joining = joining
        self._uses = np.zeros(first + slots, np.uint8)
        self.pins = np.zeros(first + slots, np.int16)
        self.returned = 0

    @property
    def slots(self) -> int:
        """Number of slots in the two queues."""
        return int(self._small.size + self._main.size)

    @property
    def remembered(self) -> int:
        """Maximum number of evicted rows that are remembered."""
        return self._remembered.size

    @property
    def nbytes(self) -> int:
        """Bytes in addition to the rows, including those for slots that may join."""
        queues = 4 * (self.slots + self._joining)
        arrays = self._uses.nbytes + self.pins.nbytes
        return int(self.index.nbytes + self._remembered.nbytes + arrays + queues)

    def find(self, rows: I64) -> I64:
        """Returns the slot of each row, int64 [n], or NOWHERE. Rows may repeat."""
        return self.index.find(rows)

    def use(self, slots: I64) -> None:
        """Counts one use of each slot, even if it is named repeatedly."""
        uses = self._uses.take(slots)
        self._uses[slots] = uses + (uses < MAX_USES)

    def fill(self, rows: I64) -> tuple[I64, I64]:
        """Fills an empty cache. rows: int64 [n], distinct, hottest first.

        Returns (slots, which), int64 [m] each: slot i gets rows[which[i]].
        """
        slots = np.concatenate((self._main[::-1], self._small)).astype(np.int64)[: rows.size]
        stored = self.index.put(rows[: slots.size], slots)
        self._vacant = max(self._main.size - rows.size, 0)
        return slots[stored], np.flatnonzero(stored)

    def join(self, rows: I64, slots: I64) -> None:
        """Adds slots together with the rows they hold, next to be evicted. rows: int64 [n], coldest first."""
        self._joining -= slots.size
        self.index.put(rows, slots)
        small = min(max(round((self.slots + slots.size) * SMALL), 1), self._small.size + slots.size)
        added = slots.astype(np.int32)
        # rolled to begin at their hands, behind the added slots
        more = max(small - self._small.size, 0)
        self._small = np.concatenate((added[:more], np.roll(self._small, -self._small_hand)))
        self._main = np.concatenate((added[more:], np.roll(self._main, -self._main_hand)))
        self._small_hand = self._main_hand = 0

    def claim(self, rows: I64, repeats: I64 | None = None) -> tuple[I64, I64]:
        """Evicts rows and assigns their slots to new ones.

        rows: int64 [n], distinct, not cached, most wanted first. repeats: int64 [n], uses that new rows
        already have. Returns (slots, which), int64 [m] each: slot i gets rows[which[i]]. Rows get no slot if
        they would leave the small queue before the end of the batch, or if all other slots are pinned.
        """
        if not self.slots:
            return rows[:0], rows[:0]
        returning = self._remembered.has(rows)
        self.returned += int(returning.sum())
        to_main, to_small = np.flatnonzero(returning), np.flatnonzero(~returning)
        places = self._leaving_places(to_small.size)
        to_small, passing = to_small[: places.size], to_small[places.size :]
        leaving = self._small[places].astype(np.int64)
        row = self.index.key(leaving)
        moving = self._moving(leaving, row != NOWHERE)
        taken = self._evict_from_main(moving.size + to_main.size)
        moving, to_main = moving[: taken.size], to_main[: max(taken.size - moving.size, 0)]
        evicted = np.ones(leaving.size, bool)
        evicted[moving] = False
        freed = self._main[taken].astype(np.int64)
        self.index.remove(np.concatenate((freed, leaving[evicted])))
        self._remembered.add(np.concatenate((row[evicted & (row != NOWHERE)], rows[passing])))
        # a row that moves keeps its slot: the two queues swap slots
        self._main[taken[: moving.size]] = leaving[moving]
        self._uses[leaving] = 0
        leaving[moving] = freed[: moving.size]
        self._small[places] = leaving
        slots = np.concatenate((leaving, freed[moving.size :]))
        which = np.concatenate((to_small, to_main))
        self._uses[slots] = 0 if repeats is None else np.minimum(repeats[which], MAX_USES)
        stored = self.index.put(rows[which], slots)
        return slots[stored], which[stored]

    def _leaving_places(self, count: int) -> I64:
        """Returns up to `count` positions in the small queue whose rows leave it, oldest first."""
        size = self._small.size
        places: I64 = (self._small_hand + np.arange(size if count > size // 4 else 4 * count)) % size
        places = places[self.pins.take(self._small.take(places)) == 0][:count]
        if places.size:
            self._small_hand = int(places[-1] + 1) % size
        return places

    def _moving(self, leaving: I64, holds: NDArray[np.bool_]) -> I64:
        """Returns which slots that leave the small queue move to the main queue. holds: slots with a row."""
        moves = holds & (self._uses.take(leaving) > 0)
        if self._vacant:
            # nothing needs to be evicted yet
            others = np.flatnonzero(holds & ~moves)
            moves[others[: max(self._vacant - int(moves.sum()), 0)]] = True
        return np.flatnonzero(moves)

    def _evict_from_main(self, count: int) -> I64:
        """Returns up to `count` distinct positions in the main queue, int64, whose rows are evicted."""
        size = self._main.size
        found = [np.empty(0, np.int64)]
        left, passed = min(count, size), 0
        # this many rounds at most; a row with more uses than rounds stays
        while left and passed < (MAX_USES + 1) * size:
            ahead = min(max(4 * left, 64), size - passed % size)
            places = (self._main_hand + np.arange(ahead)) % size
            slots = self._main.take(places)
            uses = self._uses.take(slots)
            free = np.flatnonzero((uses == 0) & (self.pins.take(slots) == 0))[:left]
            end = int(free[-1]) + 1 if free.size == left else ahead
            self._uses[slots[:end]] = uses[:end] - (uses[:end] > 0)
            # pin an evicted slot until its position is taken, so that no later round finds it
            self.pins[slots[free]] += 1
            found.append(places[free])
            self._main_hand = (self._main_hand + end) % size
            left, passed = left - free.size, passed + end
        taken = np.concatenate(found)
        self.pins[self._main.take(taken)] -= 1
        self._vacant = max(self._vacant - taken.size, 0)
        return taken
