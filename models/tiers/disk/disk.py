"""Implements the disk tier: rows in a file of pages, in popularity order, read through a bounded cache.

The missing pages of a batch are found with whole-array operations and read once each, concurrently, into
staging slots of the slab from which the batch is gathered. A batch with more missing pages than slots is
served in parts. `prefetch` starts these reads for a queued batch. Requested rows are copied to the row cache,
which is most of the memory, several batches at a time.

The file is opened for direct reads if possible, because the kernel's page cache would hold the same rows, and
their neighbors, a second time. It is a working copy: bundles are immutable, and updated rows are written to
this file.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.page_file import open_direct, pages_of
from polyrec.models.tiers.disk.pinned_rows import PinnedRows
from polyrec.models.tiers.disk.reads import open_reader
from polyrec.models.tiers.disk.row_cache import RowCache
from polyrec.models.tiers.disk.row_index import NOWHERE
from polyrec.models.tiers.disk.row_writer import RowWriter
from polyrec.models.tiers.disk.staging import StagedPages
from polyrec.models.tiers.disk.waiting_rows import WaitingRows
from polyrec.models.tiers.slab import Bytes, Slab
from polyrec.models.tiers.tier_settings import ReaderKind

log = logging.getLogger("polyrec.tiers")

AHEAD = 0.5
"""Maximum share of the page slots pinned for prefetched batches; the others are for batches being served."""
AHEAD_BATCHES = 64
"""Batches after which prefetched pages are unpinned: the query was canceled or used another path."""
ROWS_AT_ONCE = 1 << 16


class ReadAhead(NamedTuple):
    """Reads started before a batch needs them.

    pages: number of pages. tickets: reads to wait for, including reads that others started.
    """

    pages: int
    tickets: tuple[int, ...]


NO_READS = ReadAhead(0, ())


class DiskTier:
    """Serves rows `0 ... rows - 1` from pages of a file, cached in the slab. Thread-safe.

    kept: number of leading slab rows that do not belong to the cache; the others are its slots.
    joining: number of these kept rows that may `join` the cache later.
    """

    def __init__(
        self,
        path: Path,
        slab: Slab,
        rows: int,
        kept: int = 0,
        joining: int = 0,
        reader: ReaderKind | None = None,
    ) -> None:
        self.path, self.rows = path, rows
        self._slab = slab
        self.pages = pages_of(slab, rows)
        self.staged = StagedPages(slab.pages)
        self._waiting = WaitingRows(self.staged.pins)
        # slots are numbered from the first row that may become one
        self._first = 0 if joining else kept
        self.row_cache = RowCache(rows, slab.rows - kept, kept - self._first, joining)
        self._slots = slab.row_bytes()[self._first :]
        self._paged = slab.paged_rows()
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(self._file).st_size < self.pages * slab.page_bytes:
            os.close(self._file)
            raise OSError(f"'{path}' is shorter than the {self.pages} pages that it should hold")
        with ExitStack() as opened:
            opened.callback(os.close, self._file)
            self._direct, self.direct = open_direct(path, slab.page_bytes)
            opened.callback(os.close, self._direct)
            self._reader = open_reader(self._direct, slab.bytes, reader)
            opened.callback(self._reader.close)
            self._writer = RowWriter(self._file, slab.row_format.bytes)
            opened.pop_all()
        self.reader = self._reader.kind
        self._ticket_of_slot = np.zeros(slab.pages, np.int64)
        self._flying: deque[tuple[int, I64]] = deque()
        self._is_ahead = np.zeros(slab.pages, bool)
        self._ahead: deque[tuple[int, I64]] = deque()
        self._ahead_pages = self._batches = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.pages * self._slab.page_bytes

    @property
    def index_nbytes(self) -> int:
        """Bytes of the indexes of rows and pages."""
        own = self._ticket_of_slot.nbytes + self._is_ahead.nbytes
        return self.staged.nbytes + self.row_cache.nbytes + int(own)

    def acquire(self, rows: I64) -> PinnedRows:
        """Pins rows in memory and starts reading missing pages. rows: int64 [n], addresses in this tier.

        The caller must call `ready`, which waits for the reads, and then `release`. Serves at least one
        lookup; waits while other batches pin all page slots.
        """
        with self._lock:
            self._reap()
            self._batches += 1
            slots = self.row_cache.find(rows)
            here = slots != NOWHERE
            kept = slots[here]
            self.row_cache.use(kept)
            self.row_cache.pins[kept] += 1
            addresses = self._slab.row_addresses(np.maximum(slots, 0) + self._first)
            away = np.flatnonzero(~here)
            none = away[:0]
            if not away.size:
                return PinnedRows(addresses, none, none, kept, (), none, 0, (none, none, none))
            # sorting makes equal rows adjacent, and with them equal pages
            away = away[np.argsort(rows[away], kind="stable")]
            row = rows[away]
            page, place = np.divmod(row, self._slab.rows_a_page)
            begins = _begins(page)
            of_page = np.cumsum(begins) - 1
            slot_of_page, read = self._stage(page[begins], wait=not kept.size)
            served = slot_of_page[slot_of_page != NOWHERE]
            tickets = set(self._ticket_of_slot[served].tolist()) - {0} if self._flying else set()
        slot = slot_of_page[of_page]
        missed = away[read[of_page] & _begins(row)]
        left = none
        if served.size < slot_of_page.size:
            staged = slot != NOWHERE
            left, away, row, slot, place = (away[~staged], *(x[staged] for x in (away, row, slot, place)))
        addresses[away] = self._slab.page_row_addresses(slot, place)
        return PinnedRows(
            addresses, left, served, kept, tuple(tickets), missed, int(read.sum()), (row, slot, place)
        )

    def _stage(self, pages: I64, wait: bool) -> tuple[I64, NDArray[np.bool_]]:
        """Pins pages in their slots and starts reading those without a slot.

        wait: waits until one slot is free, if no page has one. Returns (slot of each page, NOWHERE if there
        was no free slot; whether its read starts now).
        """
        slots = self.staged.find(pages)
        if wait and (slots == NOWHERE).all():
            self._wait_for_room()
            slots = self.staged.find(pages)
        here = slots[slots != NOWHERE]
        # pin before claiming: this batch's own pages must not be evicted
        self.staged.pins[here] += 1
        if self._ahead_pages:
            self._unpin(here)
        away = np.flatnonzero(slots == NOWHERE)
        read = self._read(pages[away])
        self.staged.pins[read] += 1
        now = away[: read.size]
        slots[now] = read
        is_read = np.zeros(pages.size, bool)
        is_read[now] = True
        return slots, is_read

    def ready(self, held: PinnedRows) -> None:
        """Waits for the reads of pinned rows. Raises OSError if one failed; `release` is still required."""
        for ticket in held.tickets:
            self._wait(ticket)
        if held.paged[0].size and self.row_cache.slots:
            with self._lock:
                self._waiting.add(*held.paged)
                if self._waiting.many:
                    self._enter()

    def _enter(self) -> None:
        """Copies waiting rows from their pages into the row cache."""
        rows, page, place, lookups = self._waiting.take()
        # some may have entered since they were looked up
        new = np.flatnonzero(self.row_cache.find(rows) == NOWHERE)
        slots, which = self.row_cache.claim(rows[new], lookups[new] - 1)
        which = new[which]
        self._slots[slots] = self._paged[page[which], place[which]]

    def release(self, held: PinnedRows) -> None:
        """Unpins rows."""
        with self._lock:
            self.staged.pins[held.slots] -= 1
            self.row_cache.pins[held.kept] -= 1
            self._released.notify_all()

    def missing(self, rows: I64) -> tuple[I64, I64, NDArray[np.bool_]]:
        """Returns (indices of uncached rows, the page of each, whether a batch would wait for it).

        rows: int64 [n], addresses in this tier. The results are [m]; pages may repeat. A batch waits for
        pages that are not staged or are still being read. Cached rows are found without the lock, while
        another batch may be evicting some: an outdated answer costs only time.
        """
        away = np.flatnonzero(self.row_cache.find(rows) == NOWHERE)
        pages: I64 = rows[away] // self._slab.rows_a_page
        if not away.size:
            return away, pages, away != 0
        with self._lock:
            self._reap()
            slots = self.staged.find(pages)
            waits = (slots == NOWHERE) | (self._ticket_of_slot[slots] != 0)
        return away, pages, waits

    def wait(self, tickets: tuple[int, ...]) -> None:
        """Waits for reads started by `prefetch`. A failed read is dropped, so that a batch retries it."""
        for ticket in tickets:
            with suppress(OSError):
                self._wait(ticket)

    def prefetch(self, pages: I64) -> ReadAhead:
        """Starts reading missing pages, as far as there are free slots, without waiting.

        pages: int64 [n], distinct. They are pinned until a batch uses them. Earlier prefetches keep their
        slots, because they are used first.
        """
        with self._lock:
            while self._ahead and self._ahead[0][0] + AHEAD_BATCHES < self._batches:
                self._unpin(self._ahead.popleft()[1])
            free = int(AHEAD * self.staged.slots) - self._ahead_pages
            if free <= 0:
                return NO_READS
            slots = self.staged.find(pages)
            away = slots == NOWHERE
            # staged pages must not be evicted for missing ones
            here = slots[~away]
            here = here[~self._is_ahead[here]][:free]
            self._keep_ahead(here)
            read = self._read(pages[away][: free - here.size])
            self._keep_ahead(read)
            self._ahead.append((self._batches, np.concatenate((here, read))))
            tickets = set(self._ticket_of_slot[slots[~away]].tolist()) | set(
                self._ticket_of_slot[read].tolist()
            )
            return ReadAhead(int(read.size), tuple(tickets - {0}))

    def _keep_ahead(self, slots: I64) -> None:
        self.staged.pins[slots] += 1
        self._is_ahead[slots] = True
        self._ahead_pages += slots.size

    def keep(self, rows: I64, values: Callable[[I64], Bytes]) -> None:
        """Fills the row cache before the first lookup.

        rows: int64 [n], distinct, hottest first.
        values: returns uint8 [m, bytes per row] for indices into `rows`.
        """
        with self._lock:
            slots, which = self.row_cache.fill(rows)
            for start in range(0, slots.size, ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                self._slots[slots[part]] = values(which[part])

    def join(self, rows: I64, slots: I64) -> None:
        """Adds kept slab rows, with their contents, to the cache; they stay pinned until `unpin`.

        rows: int64 [n], addresses in this tier, coldest first. slots: int64 [n], rows of the slab.
        """
        with self._lock:
            self.row_cache.pins[slots] += 1
            self.row_cache.join(rows, slots)

    def unpin(self, slots: I64) -> None:
        with self._lock:
            self.row_cache.pins[slots] -= 1

    def write(self, rows: I64, values: Bytes) -> None:
        """Writes new values of rows to the file, then to staged pages and cached rows.

        rows: int64 [n], distinct addresses in this tier. Only one thread may write at a time.
        """
        if not rows.size:
            return
        size = self._slab.page_bytes
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        page, place = np.divmod(rows, self._slab.rows_a_page)
        row_bytes = self._slab.row_format.bytes
        values = values[order]
        self._writer.write(page * size + place * row_bytes, values)
        # reads that began earlier may return old values; reads from here on return the new ones
        with self._lock:
            slots = self.staged.find(page)
            here = slots != NOWHERE
            slots, place, paged = slots[here], place[here], values[here]
            self.staged.pins[slots] += 1
            tickets = np.unique(self._ticket_of_slot[slots])
        self.wait(tuple(tickets[tickets > 0].tolist()))
        self._paged[slots, place] = paged
        with self._lock:
            # after the pages: a row copied from a page meanwhile has the new value, or gets it here
            cached = self.row_cache.find(rows)
            kept = cached != NOWHERE
            self._slots[cached[kept]] = values[kept]
            self.staged.pins[slots] -= 1
            self._released.notify_all()

    def close(self) -> None:
        """Closes the reader and the file, without deleting the file."""
        self._reader.close()
        self._writer.close()
        os.close(self._direct)
        os.close(self._file)

    def _unpin(self, slots: I64) -> None:
        """Unpins prefetched pages. slots: distinct."""
        ahead = slots[self._is_ahead[slots]]
        self._is_ahead[ahead] = False
        self._ahead_pages -= ahead.size
        self.staged.pins[ahead] -= 1

    def _wait_for_room(self) -> None:
        """Waits until a page slot is free; other batches may pin every slot of a very small cache."""
        while self.staged.pins.all():
            # finished reads do not notify, so poll
            self._released.wait(0.001)
            self._reap()

    def _read(self, pages: I64) -> I64:
        """Starts reading distinct pages without a slot, as far as slots are free; returns their slots."""
        if not pages.size:
            return pages
        slots = self.staged.claim(pages)
        size = self._slab.page_bytes
        ticket = self._reader.submit(pages[: slots.size] * size, self._slab.page(slots), size)
        if ticket:
            # a page must not be evicted during its read, which would overwrite the next page in the slot
            self.staged.pins[slots] += 1
            self._ticket_of_slot[slots] = ticket
            self._flying.append((ticket, slots))
        return slots

    def _reap(self) -> None:
        """Unpins the slots of finished reads."""
        if not self._flying:
            return
        under_way = self._reader.under_way()
        for _ in range(len(self._flying)):
            ticket, slots = self._flying.popleft()
            if ticket in under_way:
                self._flying.append((ticket, slots))
                continue
            try:
                self._reader.wait(ticket)
            except OSError as e:
                log.warning("%s: %s", self.path, e)
                self.staged.drop(slots)
            self._read_completed(ticket, slots)

    def _wait(self, ticket: int) -> None:
        """Waits for a read. Raises OSError if it failed, after dropping its pages, so that the next lookup
        reads them again.
        """
        try:
            self._reader.wait(ticket)
        except OSError:
            with self._lock:
                for flying in list(self._flying):
                    if flying[0] == ticket:
                        self._flying.remove(flying)
                        self.staged.drop(flying[1])
                        self._read_completed(*flying)
            raise

    def _read_completed(self, ticket: int, slots: I64) -> None:
        self._ticket_of_slot[slots[self._ticket_of_slot[slots] == ticket]] = 0
        self.staged.pins[slots] -= 1


def _begins(ascending: I64) -> NDArray[np.bool_]:
    """Returns bool [n], True for the first element of each run of equal values."""
    begins = np.ones(ascending.size, bool)
    np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
    return begins
