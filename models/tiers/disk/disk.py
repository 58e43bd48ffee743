"""The disk tier: rows in a file of pages, in popularity order, read through a bounded cache of pages.

Pages hold rows of like heat, since rows stand in the order of their accesses; a page is the unit of reading
and of caching (MTrainS, section 3: the block-addressable level). A batch's missing pages are found by whole
arrays, each is read once however many of its rows are wanted, all at the same time, straight into the
slab that the batch is gathered from. `prefetch` starts the same reads for a batch that still waits in a
queue. The file is opened for direct reads where its file system has them: the cache above knows what to keep
better than the kernel's, and memory is not spent twice. Of a page that was read, the rows that were wanted
stay longest: they are copied to where single rows are kept (recent), which is most of the cache.

The file is a working copy: bundles are immutable, and new values of rows are written here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.page_cache import DEFAULT, NOWHERE, Admission, PageCache
from polyrec.models.tiers.disk.reads import Kind, open_reader
from polyrec.models.tiers.disk.row_cache import RowCache
from polyrec.models.tiers.slab import Bytes, Slab

log = logging.getLogger("polyrec.tiers")

PAGES_AT_ONCE = 4096
AHEAD = 0.5
"""Share of the cached pages that is kept for batches that wait: as the coldest they would go first."""
AHEAD_BATCHES = 64
"""After so many batches they are waited for no more: the query has gone, or gone elsewhere."""
ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """Rows that are in the cache until `release`: their addresses in the slab, and what was read for them.

    kept: slots of the rows that are kept singly; slots: of the others' pages. Each once.
    missed: look-ups that had to wait for a read: the first of each row that was not in memory.
    fresh, places: those other rows, each once, and the slot and the place in its page where each stands.
    claims: how often rows had been kept singly till then.
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
    """A batch needs more pages at once than the cache has: it must be gathered in parts."""


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
        admission: Admission = DEFAULT,
        reader: Kind | None = None,
    ) -> None:
        self.path, self.rows = path, rows
        self._slab = slab
        self.pages = pages_of(slab, rows)
        # where every page has a slot, no row needs another
        row_slots = admission.row_slots(slab.pages) if slab.pages < self.pages else 0
        self.cache = PageCache(self.pages, slab.pages - row_slots, heat, admission.for_pages(slab.pages))
        self.row_cache = RowCache(rows, row_slots * slab.rows_a_page)
        self._paged = slab.paged_rows()
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(self._file).st_size < self.pages * slab.page_bytes:
            os.close(self._file)
            raise OSError(f"'{path}' is shorter than the {self.pages} pages that it should hold")
        self._direct, self.direct = _open_direct(path)
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
        """Bytes of memory that say what the cache holds."""
        return self.cache.nbytes + self.row_cache.nbytes + int(self._ticket_of_slot.nbytes)

    def acquire(self, rows: I64) -> PinnedRows:
        """rows: int64 [n], addresses in this tier. Starts the reads of what is missing, and pins all of it.

        Raises CacheTooSmall, and then holds nothing. Every other call must be followed by `ready`, which
        waits for the reads, and `release`.
        """
        own, first, back = np.unique(rows, return_index=True, return_inverse=True)
        address = np.empty(own.size, np.int64)
        with self._lock:
            self._reap()
            if rows.size == 1:
                self._wait_for_room()
            single = self.row_cache.find(own)
            paged = single == NOWHERE
            kept, fresh = single[~paged], own[paged]
            # a row's page ascends as the row does, so equal pages are neighbors
            page, place = np.divmod(fresh, self._slab.rows_a_page)
            begins = _begins(page)
            pages = page[begins]
            cache = self.cache
            cache.touch(pages)
            slots = cache.slot_of_page[pages].astype(np.int64)
            away = slots == NOWHERE
            wanted = pages[away]
            # what is here must not be evicted for what is not
            here = slots[~away]
            cache.pins[here] += 1
            self._batches += 1
            if self._ahead_pages:
                self._let_go(here)
            if wanted.size:
                # asked before anything is read: what is read for nothing would displace what is wanted
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
        """Waits for the reads of what is held. Raises OSError if one failed: release all the same."""
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
                    # another batch may have brought the same rows meanwhile
                    new = self.row_cache.find(fresh) == NOWHERE
                    fresh, page, place = fresh[new], page[new], place[new]
                slots, which = self.row_cache.claim(fresh)
                self._paged[self._single(slots)] = self._paged[page[which], place[which]]

    def release(self, held: PinnedRows) -> None:
        """What was held may be evicted again."""
        with self._lock:
            self.cache.pins[held.slots] -= 1
            self.row_cache.pins[held.kept] -= 1
            self._released.notify_all()

    def prefetch(self, rows: I64) -> int:
        """Starts the reads of missing pages, as far as there is room; gives how many. Does not wait.

        They are kept until a batch has had them. What was asked for first keeps its room: it is used first.
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
            # what is here already must not be evicted for what is not
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
        """Reads the hottest pages, as the calibration has it, until the cache is full; gives how many."""
        order = np.argsort(-self.cache.heat.astype(np.int16), kind="stable")[: self.cache.slots]
        with self._lock:
            slots = self.cache.fill(order)
            # in the order of the file, which disks like
            by_page = np.argsort(order)
            order, slots = order[by_page], slots[by_page]
            for start in range(0, order.size, PAGES_AT_ONCE):
                part = slice(start, start + PAGES_AT_ONCE)
                self._reader.wait(self._submit(order[part], slots[part]))
        return int(order.size)

    def keep(self, rows: I64, values: Callable[[I64], Bytes]) -> None:
        """Keeps rows singly, before anything is looked up. rows: int64 [n], distinct, the hottest first; as
        many as find a place. values: uint8 [m, bytes of a row] of those at the given places of `rows`."""
        kept = [np.empty(0, np.int64)]
        with self._lock:
            for start in range(0, rows.size, ROWS_AT_ONCE):
                slots, which = self.row_cache.claim(rows[start : start + ROWS_AT_ONCE])
                if slots.size:
                    self._paged[self._single(slots)] = values(start + which)
                # colder rows are not to take the place of these
                self.row_cache.pins[slots] += 1
                kept.append(slots)
            self.row_cache.pins[np.concatenate(kept)] -= 1

    def write(self, rows: I64, values: Bytes) -> None:
        """New values of rows: into the file, then into what is cached or being read of it.

        rows: int64 [n], addresses in this tier, distinct. One writer at a time.
        """
        size = self._slab.page_bytes
        order = np.argsort(rows, kind="stable")
        page, place = np.divmod(rows[order], self._slab.rows_a_page)
        row_bytes = self._slab.row_format.bytes
        offsets = (page * size + place * row_bytes).tolist()
        for offset, value in zip(offsets, values[order], strict=True):
            os.pwrite(self._file, value, offset)
        # A read that began before may bring the old values; one that begins from here on brings the new.
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
            # after the pages: a row that is copied from one meanwhile has the new value, or gets it here
            single = self.row_cache.find(rows)
            kept = single != NOWHERE
            self._paged[self._single(single[kept])] = values[kept]
            self.cache.pins[slots] -= 1
            self._released.notify_all()

    def close(self) -> None:
        """Ends reading. The file stays, if it has a name still."""
        self._reader.close()
        os.close(self._direct)
        os.close(self._file)

    def _single(self, slots: I64) -> tuple[I64, I64]:
        """(page of the slab, place in it) of rows that are kept singly: behind the cached pages."""
        page, place = np.divmod(slots, self._slab.rows_a_page)
        return page + self.cache.slots, place

    def _let_go(self, slots: I64) -> None:
        """What was read ahead may be evicted again. slots: each once."""
        own = slots[self._is_ahead[slots]]
        self._is_ahead[own] = False
        self._ahead_pages -= own.size
        self.cache.pins[own] -= 1

    def _wait_for_room(self) -> None:
        """Until a slot is free: others hold every page of a very small cache."""
        while self.cache.pins.all():
            # reads that end tell nobody, so they are looked for again
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
            # a page that is on its way must not be evicted: the disk would write into another's slot
            self.cache.pins[slots] += 1
            self._ticket_of_slot[slots] = ticket
            self._flying.append((ticket, slots))
        return ticket

    def _reap(self) -> None:
        """Frees the slots of reads that have ended."""
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
        """Forgets the pages of a read that failed: whoever wants them next reads again."""
        with self._lock:
            for flying in list(self._flying):
                if flying[0] == ticket:
                    self._flying.remove(flying)
                    self.cache.drop(self.cache.page_of_slot[flying[1]].astype(np.int64))
                    self._landed(*flying)

    def _landed(self, ticket: int, slots: I64) -> None:
        own = slots[self._ticket_of_slot[slots] == ticket]
        self._ticket_of_slot[own] = 0
        self.cache.pins[slots] -= 1


def _begins(ascending: I64) -> NDArray[np.bool_]:
    """bool [n]: which are the first of their value."""
    begins = np.ones(ascending.size, bool)
    np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
    return begins


def pages_of(slab: Slab, rows: int) -> int:
    """Pages that so many rows fill."""
    return -(-rows // slab.rows_a_page)


def write_pages(path: Path, slab: Slab, parts: Iterable[Bytes]) -> None:
    """Writes the file of a disk tier. parts: uint8 [n, bytes of a row] each, in the order of addresses."""
    size = slab.rows_a_page * slab.row_format.bytes
    left = np.empty((0, slab.row_format.bytes), np.uint8)
    with path.open("wb") as file:

        def put(rows: Bytes) -> None:
            pages = np.zeros((pages_of(slab, len(rows)), slab.page_bytes), np.uint8)
            flat = pages[:, :size]
            whole = len(rows) // slab.rows_a_page * slab.rows_a_page
            flat[: whole // slab.rows_a_page] = rows[:whole].reshape(-1, size)
            if whole < len(rows):
                flat[-1, : (len(rows) - whole) * slab.row_format.bytes] = rows[whole:].ravel()
            file.write(pages.data)

        for part in parts:
            rows = np.concatenate((left, part)) if len(left) else part
            whole = len(rows) // slab.rows_a_page * slab.rows_a_page
            put(rows[:whole])
            left = rows[whole:].copy()
        if len(left):
            put(left)


def _open_direct(path: Path) -> tuple[int, bool]:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC), True
    except OSError:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # pages far from one another are wanted: reading on behind each would only cost
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return file, False
