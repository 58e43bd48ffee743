"""Keeps part of a training's rows in memory: the hot prefix of every table, and a cache of other rows.

    ranks below a table's cut   always in memory
    other ranks                 in the file, and in the cache from the step that needs them until evicted

All of them are in one weight, which the same optimizer updates as without tiers, with its accumulators. Only
`prepare` changes which rows are in memory. It may run in another thread, ahead of the current step: rows of
unfinished steps are not evicted, so the two threads never touch the same row. A row is written back before it
is evicted, so that the file has its last value when it is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.embeddings.store import FloatRows
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F32, I64
from polyrec.models.tiers.disk.row_index import NOWHERE
from polyrec.models.training.tiers.slots import SlotDirectory
from polyrec.models.training.tiers.undo_log import UndoLog

RUNS = 16
"""Rows are evicted in runs of at least one RUNS-th of the cache."""
ROWS_AT_ONCE = 2**16
ALL_STEPS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """The rows of a step, in memory until it is done. slots: int64, in the order of the requested rows."""

    step: int
    slots: I64


class ResidentRows:
    """The part of a file of rows that is in memory.

    rows: the tables. cuts: rows of each table that are always in memory. slots: number of slots of the cache.
    initial: yields the values of new rows, for a file that does not exist yet.
    """

    def __init__(
        self,
        rows: FusedRows,
        cuts: Mapping[str, int],
        slots: int,
        log: UndoLog,
        initial: Callable[[], Iterable[F32]],
    ) -> None:
        self.total, self.width = rows.total, log.file.width
        self.log = log
        self._initial, self._opened = initial, False
        self._bases = np.array([rows.base[t] for t in rows.tables], np.int64)
        self._cuts = np.array([cuts.get(t, 0) for t in rows.tables], np.int64)
        self._first_slots = np.cumsum(self._cuts) - self._cuts
        self.prefix = int(self._cuts.sum())
        self._cache = SlotDirectory(rows.total, slots)
        self.store = FloatRows(torch.zeros((self.prefix + slots, self.width)))
        self._values: F32 = self.store.weight.detach().numpy()
        self._squares: Sequence[NDArray[np.float32]] = ()
        self._changed = np.zeros(self.prefix + slots, bool)
        self._residency = threading.Lock()
        self._steps = threading.Condition()
        self._prepared = self._done = 0

    def begin(self, accumulators: Sequence[Tensor]) -> None:
        """Sets the optimizer's accumulators of `store`, [slots] each, which are stored with the rows."""
        self._squares = [a.numpy() for a in accumulators]
        self._done = self._prepared

    def restore(self, number: int) -> None:
        """Restores a snapshot taken by an earlier process. Raises OSError."""
        self.log.open(number)
        self._opened = True
        self._load()

    def _open(self) -> None:
        if not self._opened:
            self.log.create(self._initial())
            self._opened = True
            self._load()

    def _load(self) -> None:
        """Reads the prefix and empties the cache."""
        held = np.flatnonzero(self._cache.row != NOWHERE)
        self._cache.remove(held)
        self._changed[:] = False
        for start in range(0, self.prefix, ROWS_AT_ONCE):
            slots = np.arange(start, min(start + ROWS_AT_ONCE, self.prefix))
            self._put(slots, self.log.read(self._rows_of(slots)))

    def prepare(self, rows: I64) -> PreparedRows:
        """Brings the rows of the next step into memory; waits for earlier steps if the cache is full.

        rows: int64 [n], may repeat. Raises DataError if they do not fit the cache.
        """
        step = self._prepared
        self._prepared += 1
        while True:
            done = self._done
            with self._residency:
                self._open()
                slots = self._load_missing(rows, step, done)
            if slots is not None:
                return PreparedRows(step, slots)
            if done >= step:
                raise DataError(
                    f"the rows of a step do not fit the cache of {self._cache.slots:,} rows; "
                    "take more --memory or fewer --batch-rows"
                )
            with self._steps:
                self._steps.wait_for(lambda seen=done: self._done > seen)  # type: ignore[misc]

    def done(self, prepared: PreparedRows) -> None:
        """Marks the rows of a finished step as changed; they may now be evicted."""
        self._changed[prepared.slots] = True
        self._release(prepared.step + 1)

    def release(self) -> None:
        """Abandons all prepared steps, including those prepared before the next `begin`."""
        self._release(ALL_STEPS)

    def _release(self, done: int) -> None:
        with self._steps:
            self._done = done
            self._steps.notify_all()

    def _load_missing(self, rows: I64, step: int, done: int) -> I64 | None:
        """Returns the slots of rows after reading missing ones into memory; None if there is no free slot."""
        slots = self._prefix_slots(rows)
        cold = np.flatnonzero(slots == NOWHERE)
        wanted = rows[cold]
        found = self._cache.find(wanted)
        cached = found != NOWHERE
        self._cache.use(found[cached], step)
        missing, which = np.unique(wanted[~cached], return_inverse=True)
        if not self._make_room(missing.size, done):
            return None
        new = self._cache.add(missing, step)
        self._put(self.prefix + new, self.log.read(missing))
        found[~cached] = new[which]
        slots[cold] = self.prefix + found
        return slots

    def _make_room(self, count: int, done: int) -> bool:
        """Evicts rows until `count` slots are free; returns whether they are."""
        lacking = count - self._cache.free
        if lacking > 0:
            to_evict = self._cache.to_evict(max(lacking, self._cache.slots // RUNS), done)
            self._write(self.prefix + to_evict, self._cache.row[to_evict])
            self._cache.remove(to_evict)
        return self._cache.free >= count

    def read(self, rows: I64) -> F32:
        """Returns the current values of rows, float32 [n, width], from memory or the file.

        rows: int64 [n], ascending, distinct. Has no side effects; reads from the file bypass the cache.
        """
        out = np.empty((rows.size, self.width), np.float32)
        with self._residency:
            self._open()
            slots = self._prefix_slots(rows)
            cold = np.flatnonzero(slots == NOWHERE)
            found = self._cache.find(rows[cold])
            slots[cold] = np.where(found == NOWHERE, NOWHERE, self.prefix + found)
            held = np.flatnonzero(slots != NOWHERE)
            out[held] = self._values[slots[held]]
            absent = np.flatnonzero(slots == NOWHERE)
            for start in range(0, absent.size, ROWS_AT_ONCE):
                part = absent[start : start + ROWS_AT_ONCE]
                out[part] = self.log.read(rows[part])[:, : self.width]
        return out

    def flush(self) -> None:
        """Writes all changed rows to the file, between two steps."""
        with self._residency:
            self._open()
            changed = np.flatnonzero(self._changed)
            cached = changed >= self.prefix
            rows = np.empty(changed.size, np.int64)
            rows[~cached] = self._rows_of(changed[~cached])
            rows[cached] = self._cache.row[changed[cached] - self.prefix]
            order = np.argsort(rows)
            self._write(changed[order], rows[order])

    def snapshot(self) -> int:
        """Takes a snapshot of all rows, between two steps; returns its number for `roll_back`."""
        self.flush()
        with self._residency:
            return self.log.snapshot()

    def roll_back(self, number: int) -> None:
        """Restores a snapshot; no step may be prepared."""
        with self._residency:
            self.log.roll_back(number)
            self._load()

    def _write(self, slots: I64, rows: I64) -> None:
        """Writes those rows that have changed. slots: of the weight. rows: int64, ascending."""
        changed = np.flatnonzero(self._changed[slots])
        for start in range(0, changed.size, ROWS_AT_ONCE):
            part = changed[start : start + ROWS_AT_ONCE]
            own = slots[part]
            records = [self._values[own], *(s[own][:, None] for s in self._squares)]
            self.log.write(rows[part], np.concatenate(records, axis=1))
        self._changed[slots] = False

    def _put(self, slots: I64, records: F32) -> None:
        """Copies records into the weight and the accumulators."""
        self._values[slots] = records[:, : self.width]
        for column, squares in enumerate(self._squares, self.width):
            squares[slots] = records[:, column]

    def _prefix_slots(self, rows: I64) -> I64:
        """Returns the slot of each row that is always in memory, NOWHERE for the others."""
        table = np.searchsorted(self._bases, rows, side="right") - 1
        rank = rows - self._bases[table]
        return np.where(rank < self._cuts[table], self._first_slots[table] + rank, NOWHERE)

    def _rows_of(self, slots: I64) -> I64:
        """Returns the row in each slot of the prefix."""
        table = np.searchsorted(self._first_slots, slots, side="right") - 1
        return slots - self._first_slots[table] + self._bases[table]
