"""Reads and writes the file of a training's rows: one record per row, in pages, bypassing the page cache.

A record is a row's values, its optimizer state (one accumulated square per column block) and a mark, the
number of the latest snapshot when it was last written (models/training/tiers/undo_log.py). A record never
crosses a page. Sorted rows that lie close together are moved in extents of several pages: on a disk with
90,000 reads/s, a read of 16 pages takes as long as three reads of one page.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import F32, I64
from polyrec.models.tiers.disk.page_file import open_direct
from polyrec.models.tiers.disk.reads import open_reader, open_writer
from polyrec.models.tiers.tier_settings import PAGE_BYTES, ReaderKind

EXTENT_PAGES = 16
DENSE = 3
"""Number of wanted pages from which a whole extent is moved."""

Before = Callable[[I64, F32], object]
"""Called with rows and their old records before they are overwritten."""


@dataclass(frozen=True, slots=True)
class _Move:
    """Pages to read or write at once.

    rows: which of the given rows they hold. offsets: in the file. targets: in the buffer. length: of each, a
    page or an extent.
    place: page of the buffer that holds each row.
    """

    rows: slice
    offsets: I64
    targets: I64
    length: int
    place: I64


class RowFile:
    """Records of rows 0 ... rows - 1, float32 [columns] each: values, squares, mark (int32, as bits).

    buffer_bytes: memory through which pages are moved, at least two extents. kind: method of reading and
    writing, see `open_reader`. Not thread-safe. Raises OSError.
    """

    def __init__(
        self,
        path: Path,
        rows: int,
        width: int,
        squares: int,
        buffer_bytes: int = 2**24,
        kind: ReaderKind | None = None,
    ) -> None:
        self.path, self.rows, self.width = path, rows, width
        self.columns = width + squares + 1
        self.page_bytes = -(-4 * self.columns // PAGE_BYTES) * PAGE_BYTES
        self.rows_a_page = self.page_bytes // (4 * self.columns)
        extent_bytes = EXTENT_PAGES * self.page_bytes
        self._extents = max(buffer_bytes // extent_bytes, 2)
        self._memory = mmap.mmap(-1, self._extents * extent_bytes)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._records = self._view(self._bytes)
        self._kind = kind
        self._open: tuple[int, ...] = ()

    @property
    def buffer_bytes(self) -> int:
        return self._bytes.nbytes

    @property
    def file_bytes(self) -> int:
        """Length of the file, in whole extents."""
        pages = -(-self.rows // self.rows_a_page)
        return -(-pages // EXTENT_PAGES) * EXTENT_PAGES * self.page_bytes

    def _view(self, pages: NDArray[np.uint8]) -> F32:
        """Returns a view of the records in some pages, [pages, rows of a page, columns]."""
        floats = pages.view(np.float32).reshape(-1, self.page_bytes // 4)
        size = self.rows_a_page * self.columns
        found: F32 = floats[:, :size].reshape(floats.shape[0], self.rows_a_page, self.columns)
        return found

    def create(self, parts: Iterable[F32]) -> None:
        """Creates the file, with squares and marks of zero.

        parts: values of the rows, in order, float32 [n, width] each.
        """
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        extent_rows = EXTENT_PAGES * self.rows_a_page
        pages = np.zeros((EXTENT_PAGES, self.page_bytes), np.uint8)
        records = self._view(pages.reshape(-1))
        filled = 0
        with self.path.open("wb") as file:
            for part in parts:
                start = 0
                while start < len(part):
                    count = min(len(part) - start, extent_rows - filled)
                    place = np.arange(filled, filled + count)
                    records[place // self.rows_a_page, place % self.rows_a_page, : self.width] = part[
                        start : start + count
                    ]
                    start, filled = start + count, filled + count
                    if filled == extent_rows:
                        file.write(pages.data)
                        filled = 0
            if filled:
                file.write(pages.data)
            file.flush()
            # otherwise direct access would wait until the kernel has written back its cached pages
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.open()

    def open(self) -> None:
        """Opens an existing file. Raises OSError, also if its length is wrong."""
        found = self.path.stat().st_size
        if found != self.file_bytes:
            raise OSError(f"'{self.path}' has {found} bytes instead of {self.file_bytes}")
        reading, _ = open_direct(self.path, self.page_bytes)
        writing, _ = open_direct(self.path, self.page_bytes, os.O_RDWR)
        self._reader = open_reader(reading, self._bytes, self._kind)
        self._writer = open_writer(writing, self._bytes, self._kind)
        self._open = reading, writing

    def read(self, rows: I64) -> F32:
        """Returns records, float32 [n, columns]. rows: int64 [n], ascending, distinct."""
        out = np.empty((rows.size, self.columns), np.float32)
        before: tuple[_Move, int] | None = None
        for move in (*self._moves(rows), None):
            # the next pages are read while the last ones are copied
            started = None
            if move is not None:
                started = move, self._reader.submit(move.offsets, move.targets, move.length)
            if before is not None:
                done, ticket = before
                self._reader.wait(ticket)
                out[done.rows] = self._records[done.place, rows[done.rows] % self.rows_a_page]
            before = started
        return out

    def write(self, rows: I64, records: F32, before: Before) -> None:
        """Replaces records, which are on disk after `sync`. rows: as for `read`. before: see Before."""
        tickets = [0, 0]
        for half, move in zip(cycle((0, 1)), self._moves(rows), strict=False):
            # pages are read into one half of the buffer while those in the other half are written
            self._writer.wait(tickets[half])
            self._reader.wait(self._reader.submit(move.offsets, move.targets, move.length))
            within = rows[move.rows] % self.rows_a_page
            before(rows[move.rows], self._records[move.place, within])
            self._records[move.place, within] = records[move.rows]
            tickets[half] = self._writer.submit(move.offsets, move.targets, move.length)
        for ticket in tickets:
            self._writer.wait(ticket)

    def _moves(self, rows: I64) -> Iterator[_Move]:
        """Splits rows into parts whose pages fit one half of the buffer; parts alternate between the
        halves.
        """
        capacity = self._extents // 2 * EXTENT_PAGES
        page = rows // self.rows_a_page
        pages = 1 + np.count_nonzero(np.diff(page)) if rows.size else 0
        extents = 1 + np.count_nonzero(np.diff(page // EXTENT_PAGES)) if rows.size else 0
        each = EXTENT_PAGES if pages >= DENSE * extents else 1
        length = each * self.page_bytes
        unit = page // each
        begins = np.flatnonzero(np.diff(unit, prepend=-1))
        max_reads = capacity // each
        for number, start in enumerate(range(0, begins.size, max_reads)):
            chosen = begins[start : start + max_reads]
            end = int(begins[start + max_reads]) if start + max_reads < begins.size else rows.size
            part = slice(int(chosen[0]), end)
            which = np.repeat(np.arange(chosen.size), np.diff(chosen, append=end))
            first = number % 2 * capacity
            yield _Move(
                part,
                unit[chosen] * length,
                first * self.page_bytes + np.arange(chosen.size) * length,
                length,
                first + which * each + page[part] % each,
            )

    def sync(self) -> None:
        """Waits until everything written is on disk."""
        os.fdatasync(self._open[1])

    def close(self) -> None:
        """Finishes reads and writes in flight and closes the file."""
        if self._open:
            self._reader.close()
            self._writer.close()
        for file in self._open:
            os.close(file)
        self._open = ()
