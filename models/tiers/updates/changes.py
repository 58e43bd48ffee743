"""Updates of a bundle's rows since it was written, which outlive the tiers that received them.

A bundle is immutable and tiers close with their generation, so reopening a bundle's tiers would restore its
original rows. The latest values are kept by stable id in an unlinked file; tiers that are opened later are
filled with them, and updates reach all open tiers of the bundle. Updates that arrive while tiers are being
filled are overlaid before they serve.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.slab import Bytes, RowSource
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.update import Stored, UpdateError, overlay

LEAST_ROWS = 1024
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class KeptValues:
    """Updated rows of one table. ids: int64 [n], sorted; slots: row in the file; at: number of the update."""

    ids: I64
    slots: I64
    at: I64


UNCHANGED = KeptValues(NONE, NONE, NONE)


class Changes:
    """Updates of the rows of one bundle on one device. Thread-safe. directory: of the file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        self._tables: dict[str, KeptValues] = {}
        self._file: int | None = None
        self._values: Bytes = np.empty((0, 0), np.uint8)
        self._rows = 0
        self._latest = 0
        self._stacks: list[TierStack] = []
        self._in_order: tuple[int, I64, I64] = (0, NONE, NONE)

    @property
    def rows(self) -> int:
        """Number of updated rows."""
        return self._rows

    @property
    def latest(self) -> int:
        """Number of updates so far."""
        return self._latest

    @property
    def held(self) -> AbstractContextManager[object]:
        """Lock that blocks updates while held."""
        return self._lock

    def apply(self, update: Mapping[str, Stored]) -> None:
        """Stores an update and overlays it on all open tiers.

        Raises UpdateError if it cannot be stored, and then changes nothing.
        """
        with self._lock:
            try:
                self._keep(update)
            except OSError as e:
                raise UpdateError(
                    f"update: the values cannot be kept in '{self._directory}': {e.strerror or e}"
                ) from None
            for stack in self._stacks:
                overlay(stack, update)

    def over(self, source: RowSource, sizes: Mapping[str, int], encoder: Encoder) -> RowSource:
        """Returns the source with updates applied. encoder: of the bundle's row order."""

        def rows(first: int, count: int) -> Bytes:
            given = source(first, count)
            with self._lock:
                fused, slots = self._ordered(sizes, encoder)
                begin, end = np.searchsorted(fused, (first, first + count))
                if end > begin:
                    given = given.copy()
                    given[fused[begin:end] - first] = self._values[slots[begin:end]]
            return given

        return rows

    def join(self, stack: TierStack, since: int) -> None:
        """Overlays the updates after `since` on the stack, and every later one."""
        with self._lock:
            missed = {
                table: Stored(kept.ids[late], self._values[kept.slots[late]])
                for table, kept in self._tables.items()
                if (late := kept.at > since).any()
            }
            if missed:
                overlay(stack, missed)
            self._stacks.append(stack)

    def leave(self, stack: TierStack) -> None:
        """Removes a stack that is being closed."""
        with self._lock:
            if stack in self._stacks:
                self._stacks.remove(stack)

    def close(self) -> None:
        """Discards all updates; for when the bundle will not be opened again."""
        with self._lock:
            self._tables, self._rows = {}, 0
            self._values = np.empty((0, 0), np.uint8)
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _keep(self, update: Mapping[str, Stored]) -> None:
        # allocate first: a rejected update must leave no trace
        self._make_room(update)
        self._latest += 1
        for table, given in update.items():
            kept = self._tables.get(table, UNCHANGED)
            last, back = np.unique(given.ids[::-1], return_index=True)
            values = given.values[::-1][back]
            place = np.searchsorted(kept.ids, last)
            known = np.zeros(last.size, bool)
            inside = place < kept.ids.size
            known[inside] = kept.ids[place[inside]] == last[inside]
            new = ~known
            slots = np.empty(last.size, np.int64)
            slots[known] = kept.slots[place[known]]
            slots[new] = self._rows + np.arange(int(new.sum()))
            self._rows += int(new.sum())
            self._values[slots] = values
            at = kept.at.copy()
            at[place[known]] = self._latest
            self._tables[table] = KeptValues(
                np.insert(kept.ids, place[new], last[new]),
                np.insert(kept.slots, place[new], slots[new]),
                np.insert(at, place[new], self._latest),
            )

    def _make_room(self, update: Mapping[str, Stored]) -> None:
        wanted = self._rows + sum(given.ids.size for given in update.values())
        if wanted <= len(self._values):
            return
        row_bytes = next(iter(update.values())).values.shape[1]
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            file, name = tempfile.mkstemp(".changes", "polyrec-", self._directory)
            os.unlink(name)
            self._file = file
        rows = max(wanted, 2 * len(self._values), LEAST_ROWS)
        # allocate now: on a full disk this raises, while a write through the mapping would kill the process
        os.posix_fallocate(self._file, 0, rows * row_bytes)
        memory = mmap.mmap(self._file, rows * row_bytes)
        self._values = np.frombuffer(memory, np.uint8).reshape(rows, row_bytes)

    def _ordered(self, sizes: Mapping[str, int], encoder: Encoder) -> tuple[I64, I64]:
        """Returns (updated rows of the fused weight, sorted; their rows in the file)."""
        if self._in_order[0] != self._latest:
            rows, slots, first = [], [], 0
            for table, size in sizes.items():
                kept = self._tables.get(table, UNCHANGED)
                rows.append(first + encoder.vocabularies[table].rank_of_id[kept.ids])
                slots.append(kept.slots)
                first += size
            fused, where = np.concatenate(rows), np.concatenate(slots)
            order = np.argsort(fused)
            self._in_order = self._latest, fused[order], where[order]
        return self._in_order[1], self._in_order[2]
