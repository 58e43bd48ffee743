"""Takes and restores snapshots of a file of rows, using logs of overwritten records.

A snapshot is a number, and copies nothing: after it, a row's old record is appended to the snapshot's log
before the record is first overwritten, as in a database's rollback journal. Restoring writes the old records
back, from the latest log to the snapshot's own. A mark in each record tells whether it was overwritten since
the last snapshot, so that no memory per row is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from polyrec.models.schema.batch import F32, I64
from polyrec.models.training.tiers.row_file import RowFile

ENTRIES_AT_ONCE = 2**15


class UndoLog:
    """The rows of a file, with snapshots. latest: number of the last snapshot; 0 before the first.

    Whenever the process dies, every snapshot that was not dropped can be restored.
    """

    def __init__(self, file: RowFile) -> None:
        self.file, self.latest = file, 0
        self._entry = np.dtype([("row", np.int64), ("record", np.float32, (file.columns,))])
        self._log = -1

    def create(self, parts: Iterable[F32]) -> None:
        """Creates the file (`RowFile.create`) and removes the logs of an earlier one."""
        self.close()
        for number in self._numbers():
            self._path(number).unlink()
        self.file.create(parts)
        self._begin(0)

    def open(self, number: int) -> None:
        """Opens the file and logs of an earlier process, and restores a snapshot."""
        self.close()
        self.file.open()
        self.roll_back(number)

    def read(self, rows: I64) -> F32:
        """Returns values and squares, float32 [n, columns - 1]. rows: int64 [n], ascending, distinct."""
        return self.file.read(rows)[:, :-1]

    def write(self, rows: I64, records: F32) -> None:
        """Replaces values and squares, float32 [n, columns - 1]. rows: as for `read`."""
        marked = np.empty((rows.size, self.file.columns), np.float32)
        marked[:, :-1] = records
        _mark(marked)[:] = self.latest
        self.file.write(rows, marked, self._keep)

    def _keep(self, rows: I64, old: F32) -> None:
        """Appends the records that were not overwritten since the latest snapshot."""
        first = np.flatnonzero(_mark(old) < self.latest)
        if not self.latest or not first.size:
            return
        entries = np.empty(first.size, self._entry)
        entries["row"], entries["record"] = rows[first], old[first]
        left = entries.view(np.uint8).data
        while left:
            left = left[os.write(self._log, left) :]
        # on disk before the file is overwritten, since a power loss may reorder writes
        os.fdatasync(self._log)

    def snapshot(self) -> int:
        """Takes a snapshot of all rows written so far; returns its number."""
        self.file.sync()
        self._begin(self.latest + 1)
        return self.latest

    def roll_back(self, number: int) -> None:
        """Restores a snapshot and drops later ones; the next snapshot is numbered after it."""
        later = [n for n in reversed(self._numbers()) if n >= number]
        for log in later:
            for rows, records in self._entries(log):
                order = np.argsort(rows)
                self.file.write(rows[order], records[order], lambda _rows, _old: None)
        self.file.sync()
        # latest first: if the process dies here, the remaining logs restore the same rows
        for log in later:
            self._path(log).unlink()
        self._begin(number)

    def drop_before(self, number: int) -> None:
        """Removes the logs that only snapshots before `number` need."""
        for log in self._numbers():
            if log < number:
                self._path(log).unlink()

    def close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        self.file.close()

    def remove(self) -> None:
        """Removes the file and all logs."""
        self.close()
        for number in self._numbers():
            self._path(number).unlink()
        self.file.path.unlink(missing_ok=True)

    def _begin(self, number: int) -> None:
        self.latest = number
        if self._log >= 0:
            os.close(self._log)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._log = os.open(self._path(number), flags, 0o600)

    def _entries(self, number: int) -> Iterator[tuple[I64, F32]]:
        """Yields a log's rows and old records, in parts; no row repeats."""
        with self._path(number).open("rb") as log:
            while content := log.read(ENTRIES_AT_ONCE * self._entry.itemsize):
                # a killed process may have left a partial entry, whose row was not overwritten
                whole = len(content) // self._entry.itemsize * self._entry.itemsize
                entries = np.frombuffer(content[:whole], self._entry)
                yield entries["row"], entries["record"]

    def _path(self, number: int) -> Path:
        return self.file.path.with_name(f"{self.file.path.name}.undo-{number}")

    def _numbers(self) -> list[int]:
        """Returns the numbers of the existing logs, ascending."""
        name = f"{self.file.path.name}.undo-"
        return sorted(int(p.name[len(name) :]) for p in self.file.path.parent.glob(f"{name}*"))


def _mark(records: F32) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Returns the marks of records [n, columns], int32 [n]; a view."""
    return records[:, -1:].view(np.int32)[:, 0]
