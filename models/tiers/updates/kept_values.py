"""Finds the stored value of each updated row of a table by id, without searching.

The time of an update depends on the number of its own rows, not on how many rows were updated before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64

LEAST = 64


class KeptValues:
    """Updated rows of one table, in the order of their first update. Not thread-safe.

    The array of positions by id is up to twice as long as the greatest id. The kernel allocates its memory
    only in pages where ids were updated.
    """

    def __init__(self) -> None:
        self._count = 0
        self._columns: I64 = np.empty((3, 0), np.int64)
        self._place_after: NDArray[np.int32] = np.zeros(0, np.int32)
        """The place of each id, plus one; 0: not updated."""

    @property
    def ids(self) -> I64:
        """Updated ids, int64 [n]."""
        return self._columns[0, : self._count]

    @property
    def slots(self) -> I64:
        """The file's row for each id, int64 [n]."""
        return self._columns[1, : self._count]

    @property
    def at(self) -> I64:
        """Number of the last update of each id, int64 [n]."""
        return self._columns[2, : self._count]

    def put(self, ids: I64, number: int, next_slot: int) -> tuple[I64, int]:
        """Records an update. ids: int64 [n], distinct. next_slot: the first free row of the file.

        Returns (the file's row for each id, number of new ids).
        """
        self._grow_to(int(ids.max(initial=-1)) + 1)
        place = self._place_after.take(ids).astype(np.int64) - 1
        new = np.flatnonzero(place < 0)
        if new.size:
            self._reserve(new.size)
            fresh = np.arange(self._count, self._count + new.size)
            self._columns[0, fresh] = ids[new]
            self._columns[1, fresh] = next_slot + np.arange(new.size)
            self._place_after[ids[new]] = fresh + 1
            place[new] = fresh
            self._count += new.size
        self._columns[2, place] = number
        return self._columns[1].take(place), new.size

    def _grow_to(self, size: int) -> None:
        """Grows the array to hold ids below `size`."""
        if size > self._place_after.size:
            self._place_after = np.zeros(max(size, 2 * self._place_after.size), np.int32)
            self._place_after[self.ids] = np.arange(1, self._count + 1)

    def _reserve(self, more: int) -> None:
        wanted = self._count + more
        if wanted > self._columns.shape[1]:
            columns = np.empty((3, max(wanted, 2 * self._count, LEAST)), np.int64)
            columns[:, : self._count] = self._columns[:, : self._count]
            self._columns = columns
