"""The disk tier: rows in a file of pages, in popularity order, read through a bounded cache.

Rows of a page have similar popularity, since rows are sorted by accesses; a page is the unit of reading and
caching (MTrainS, section 3: the block-addressable level). The missing pages of a batch are found with
whole-array operations and read once each, concurrently, into the slab that the batch is gathered from.
`prefetch` starts these reads for a queued batch. The file is opened for direct reads if possible, because
this cache knows access counts that the kernel's page cache does not, and memory is not spent twice. The
requested rows of a page that was read are copied to the row cache, which is most of the cache.

The file is a working copy: bundles are immutable, and updated rows are written here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.page_cache import DEFAULT, NOWHERE, CacheSettings, PageCache
from polyrec.models.tiers.disk.page_file import open_direct, pages_of
from polyrec.models.tiers.disk.reads import Kind, open_reader
from polyrec.models.tiers.disk.row_cache import RowCache
from polyrec.models.tiers.slab import Bytes, Slab

log = logging.getLogger("polyrec.tiers")

PAGES_AT_ONCE = 4096
AHEAD = 0.5
"""Maximum share of the cached pages pinned for prefetched batches; unpinned, they would be evicted first."""
AHEAD_BATCHES = 64
"""Batches after which prefetched pages are unpinned: the query was canceled or used another path."""
ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """Rows pinned in the cache until `release`: their addresses in the slab, and their reads.

    kept: distinct slots in the row cache. slots: distinct slots of pages, for the other rows.
    missed: look-ups that waited for a read: the first of each row that was not in memory.
    fresh, places: the distinct rows in pages, and the (slot, place in page) of each.
    claims: the row cache's count of claims at that time.
    """

    addresses: I64
    slots: I64
    kept: I64
    tickets: tuple[int, ...]
    missed: I64
    pages_read: int
    fresh: I64
    places: tuple[I64, I64]
    claims: int


class CacheTooSmall(Exception):
    """A batch needs more pages at once than the cache can hold; it must be gathered in parts."""


class DiskTier:
    """Rows `0 ... rows - 1` in pages of a file, cached in the pages of a slab. Thread-safe.

    heat: float [pages], expected accesses of each page, or None.
    """

    def __init__(
        self,
        path: Path,
        slab: Slab,
        rows: int,
        heat: NDArray[np.float64] | None = None,
        settings: CacheSettings = DEFAULT,
        reader: Kind | None = None,
    ) -> None:
        self.path, self.rows = path, rows
        self._slab = slab
        self.pages = pages_of(slab, rows)
        # if every page has a slot, the row cache is useless
        row_slots = settings.row_slots(slab.pages) if slab.pages < self.pages else 0
        self.cache = PageCache(self.pages, slab.pages - row_slots, heat, settings.for_pages(slab.pages))
        self.row_cache = RowCache(rows, row_slots * slab.rows_a_page)
        self._paged = slab.paged_rows()
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(self._file).st_size < self.pages * slab.page_bytes:
            os.close(self._file)
            raise OSError(f"'{path}' is shorter than the {self.pages} pages that it should hold")
        self._direct, self.direct = open_direct(path)
        self._reader = open_reader(self._direct, slab.bytes, reader)
        self.reader = self._reader.kind
        self._ticket_of_slot = np.zeros(self.cache.slots, np.int64)
        self._flying: deque[tuple[int, I64]] = deque()
        self._is_ahead = np.zeros(self.cache.slots, bool)
        self._ahead: deque[tuple[int, I64]] = deque()
        self._ahead_pages = self._batches = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.pages * self._slab.page_bytes

    @property
    def index_nbytes(self) -> int:
        """Bytes of the cache's index."""
        return self.cache.nbytes + self.row_cache.nbytes + int(self._ticket_of_slot.nbytes)

    def acquire(self, rows: I64) -> PinnedRows:
        """Pins rows in the cache and starts the reads of missing pages. rows: int64 [n], addresses in this
        tier.

        Raises CacheTooSmall, and then pins nothing. Otherwise the caller must call `ready`, which waits for
        the reads, and then `release`.
        """
        distinct, first, back = np.unique(rows, return_index=True, return_inverse=True)
        address = np.empty(distinct.size, np.int64)
        with self._lock:
            self._reap()
            if rows.size == 1:
                self._wait_for_room()
            single = self.row_cache.find(distinct)
            paged = single == NOWHERE
            kept, fresh = single[~paged], distinct[paged]
            # rows are sorted, so equal pages are adjacent
            page, place = np.divmod(fresh, self._slab.rows_a_page)
            begins = _begins(page)
            pages = page[begins]
            cache = self.cache
            cache.touch(pages)
            slots = cache.slot_of_page[pages].astype(np.int64)
            away = slots == NOWHERE
            wanted = pages[away]
            # cached pages of this batch must not be evicted for its missing ones
            here = slots[~away]
            cache.pins[here] += 1
            self._batches += 1
            if self._ahead_pages:
                self._let_go(here)
            if wanted.size:
                # checked before reading: useless reads would displace useful pages
                room = cache.slots if wanted.size <= cache.slots // 8 else int((cache.pins == 0).sum())
                read = self._read(wanted) if wanted.size <= room else wanted[:0]
                if read.size < wanted.size:
                    cache.pins[here] -= 1
                    raise CacheTooSmall(f"{wanted.size} pages are wanted, {room} have room")
                slots[away] = read
                cache.pins[read] += 1
            self.row_cache.use(kept)
            self.row_cache.pins[kept] += 1
            claims = self.row_cache.claims
            tickets = set(self._ticket_of_slot[slots].tolist()) - {0} if self._flying else set()
        of_page = np.cumsum(begins) - 1
        slot = slots[of_page]
        address[paged] = self._slab.of_pages(slot, place)
        address[~paged] = self._slab.of_pages(*self._single(kept))
        missed = first[paged][away[of_page]]
        return PinnedRows(
            address[back], slots, kept, tuple(tickets), missed, wanted.size, fresh, (slot, place), claims
        )

    def ready(self, held: PinnedRows) -> None:
        """Waits for the reads of pinned rows. Raises OSError if one failed; `release` is still required."""
        for ticket in held.tickets:
            try:
                self._reader.wait(ticket)
            except OSError:
                self._lost(ticket)
                raise
        if held.fresh.size and self.row_cache.slots:
            with self._lock:
                fresh, (page, place) = held.fresh, held.places
                if self.row_cache.claims != held.claims:
                    # another batch may have added the same rows meanwhile
                    new = self.row_cache.find(fresh) == NOWHERE
                    fresh, page, place = fresh[new], page[new], place[new]
                slots, which = self.row_cache.claim(fresh)
                self._paged[self._single(slots)] = self._paged[page[which], place[which]]

    def release(self, held: PinnedRows) -> None:
        """Unpins rows."""
        with self._lock:
            self.cache.pins[held.slots] -= 1
            self.row_cache.pins[held.kept] -= 1
            self._released.notify_all()

    def prefetch(self, rows: I64) -> int:
        """Starts the reads of missing pages, as far as there is room; returns how many. Does not wait.

        The pages are pinned until a batch uses them. Earlier prefetches keep their room: they are used first.
        """
        with self._lock:
            while self._ahead and self._ahead[0][0] + AHEAD_BATCHES < self._batches:
                self._let_go(self._ahead.popleft()[1])
            room = int(AHEAD * self.cache.slots) - self._ahead_pages
            if room <= 0:
                return 0
            page = np.sort(rows[self.row_cache.find(rows) == NOWHERE] // self._slab.rows_a_page)
            page = page[_begins(page)]
            slots = self.cache.slot_of_page[page].astype(np.int64)
            away = slots == NOWHERE
            # cached pages must not be evicted for missing ones
            here = slots[~away]
            here = here[~self._is_ahead[here]][:room]
            self._keep_ahead(here)
            read = self._read(page[away][: room - here.size])
            self._keep_ahead(read)
            self._ahead.append((self._batches, np.concatenate((here, read))))
            return int(read.size)

    def _keep_ahead(self, slots: I64) -> None:
        self.cache.pins[slots] += 1
        self._is_ahead[slots] = True
        self._ahead_pages += slots.size

    def warm(self) -> int:
        """Fills the cache with the hottest pages by calibration; returns how many."""
        order = np.argsort(-self.cache.heat.astype(np.int16), kind="stable")[: self.cache.slots]
        with self._lock:
            slots = self.cache.fill(order)
            # in file order, for sequential reads
            by_page = np.argsort(order)
            order, slots = order[by_page], slots[by_page]
            for start in range(0, order.size, PAGES_AT_ONCE):
                part = slice(start, start + PAGES_AT_ONCE)
                self._reader.wait(self._submit(order[part], slots[part]))
        return int(order.size)

    def keep(self, rows: I64, values: Callable[[I64], Bytes]) -> None:
        """Fills the row cache before the first look-up, as far as there is room.

        rows: int64 [n], distinct, hottest first. values: returns uint8 [m, bytes of a row], given indices of
        `rows`.
        """
        kept = [np.empty(0, np.int64)]
        with self._lock:
            for start in range(0, rows.size, ROWS_AT_ONCE):
                slots, which = self.row_cache.claim(rows[start : start + ROWS_AT_ONCE])
                if slots.size:
                    self._paged[self._single(slots)] = values(start + which)
                # pinned so that colder rows do not replace these
                self.row_cache.pins[slots] += 1
                kept.append(slots)
            self.row_cache.pins[np.concatenate(kept)] -= 1

    def write(self, rows: I64, values: Bytes) -> None:
        """Writes new values of rows to the file, then to cached pages and rows.

        rows: int64 [n], addresses in this tier, distinct. One writer at a time.
        """
        size = self._slab.page_bytes
        order = np.argsort(rows, kind="stable")
        page, place = np.divmod(rows[order], self._slab.rows_a_page)
        row_bytes = self._slab.row_format.bytes
        offsets = (page * size + place * row_bytes).tolist()
        for offset, value in zip(offsets, values[order], strict=True):
            os.pwrite(self._file, value, offset)
        # Reads that began before may return old values; reads from here on return the new ones.
        with self._lock:
            slots = self.cache.slot_of_page[page].astype(np.int64)
            here = slots != NOWHERE
            slots, place, paged = slots[here], place[here], values[order][here]
            self.cache.pins[slots] += 1
            tickets = np.unique(self._ticket_of_slot[slots])
        for ticket in tickets[tickets > 0].tolist():
            try:
                self._reader.wait(ticket)
            except OSError:
                self._lost(ticket)
        start = self._slab.page(slots) + place * row_bytes
        self._slab.bytes[start[:, None] + np.arange(row_bytes)] = paged
        with self._lock:
            # after the pages: a row copied from a page meanwhile has the new value or gets it here
            single = self.row_cache.find(rows)
            kept = single != NOWHERE
            self._paged[self._single(single[kept])] = values[kept]
            self.cache.pins[slots] -= 1
            self._released.notify_all()

    def close(self) -> None:
        """Closes the reader and the file; does not delete the file."""
        self._reader.close()
        os.close(self._direct)
        os.close(self._file)

    def _single(self, slots: I64) -> tuple[I64, I64]:
        """Returns (page of the slab, place in it) of row cache slots, which follow the cached pages."""
        page, place = np.divmod(slots, self._slab.rows_a_page)
        return page + self.cache.slots, place

    def _let_go(self, slots: I64) -> None:
        """Unpins prefetched pages. slots: distinct."""
        ahead = slots[self._is_ahead[slots]]
        self._is_ahead[ahead] = False
        self._ahead_pages -= ahead.size
        self.cache.pins[ahead] -= 1

    def _wait_for_room(self) -> None:
        """Waits until a slot is free: other batches may pin every page of a very small cache."""
        while self.cache.pins.all():
            # finished reads do not notify, so poll
            self._released.wait(0.001)
            self._reap()

    def _read(self, pages: I64) -> I64:
        slots = self.cache.claim(pages)
        self._submit(pages[: slots.size], slots)
        return slots

    def _submit(self, pages: I64, slots: I64) -> int:
        size = self._slab.page_bytes
        ticket = self._reader.submit(pages * size, self._slab.page(slots), size)
        if ticket:
            # a page being read must not be evicted: the read would overwrite another page
            self.cache.pins[slots] += 1
            self._ticket_of_slot[slots] = ticket
            self._flying.append((ticket, slots))
        return ticket

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
                self.cache.drop(self.cache.page_of_slot[slots].astype(np.int64))
            self._landed(ticket, slots)

    def _lost(self, ticket: int) -> None:
        """Drops the pages of a failed read, so that the next look-up reads them again."""
        with self._lock:
            for flying in list(self._flying):
                if flying[0] == ticket:
                    self._flying.remove(flying)
                    self.cache.drop(self.cache.page_of_slot[flying[1]].astype(np.int64))
                    self._landed(*flying)

    def _landed(self, ticket: int, slots: I64) -> None:
        self._ticket_of_slot[slots[self._ticket_of_slot[slots] == ticket]] = 0
        self.cache.pins[slots] -= 1


def _begins(ascending: I64) -> NDArray[np.bool_]:
    """Returns a mask, bool [n], of the first element of each run of equal values."""
    begins = np.ones(ascending.size, bool)
    np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
    return begins
