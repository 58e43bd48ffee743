"""The tiers of one bundle's rows: a batch's look-ups in, its rows out, each tier touched once.

Where a row lies is arithmetic (layout). Look-ups of the remote store are sent off first, then the missing
pages of the file are asked for; while both are on their way, rows in device memory are gathered. What lies
in host memory, and what has landed there, is then one gather. New values and new orders are installed as
views (view) and written into the tiers by a thread of their own.

One stack serves any number of readers (`rows.TieredRows`, one a lane).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.batch import I64
from models.embeddings.tiers.delta import Layer
from models.embeddings.tiers.disk import CacheTooSmall, DiskTier
from models.embeddings.tiers.figures import Counters, Figures
from models.embeddings.tiers.form import RowForm
from models.embeddings.tiers.layout import DEVICE, DISK, HOST, REMOTE, Layout
from models.embeddings.tiers.remote import RemoteTier
from models.embeddings.tiers.sample import Sample
from models.embeddings.tiers.slab import Bytes, Slab
from models.embeddings.tiers.view import View, Views
from models.encoder import Encoder

if TYPE_CHECKING:
    from models.embeddings.tiers.changes import Changes

log = logging.getLogger("polyrec.tiers")

RETRY_S = 0.2
CLOSE_S = 10.0

clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Tiers:
    """The parts of a stack, opened and filled. device: rows of the device tier [rows, units], None if there
    is none; disk, remote: None where no row lies there."""

    layout: Layout
    slab: Slab
    device: Tensor | None = None
    disk: DiskTier | None = None
    remote: RemoteTier | None = None

    @property
    def form(self) -> RowForm:
        return self.slab.form


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows lie. segment: range of the layout; tier; local: address within the tier; all [n]."""

    segment: I64
    tier: NDArray[np.int8]
    local: I64

    @staticmethod
    def of(layout: Layout, rows: I64) -> Places:
        segment = layout.segments(rows)
        if layout.rows[HOST] == layout.total:
            # one tier, with the rows in the order of the fused weight
            return Places(segment, np.broadcast_to(np.int8(HOST), rows.shape), rows)
        return Places(segment, layout.tier[segment], layout.local(rows, segment))

    def at(self, part: I64 | slice) -> Places:
        return Places(self.segment[part], self.tier[part], self.local[part])

    def address(self, tier: int) -> I64:
        """The address within that tier; 0, which is read and thrown away, for rows of others."""
        return np.where(self.tier == tier, self.local, 0)


Read = Callable[[Places, I64, Callable[[I64, Tensor], I64]], I64]
"""(places of the look-ups, which of them have new values, below) -> the look-ups that were lost.

below(at, out) gathers the look-ups `at` from under the device tier, new values over them, into out
[at.size, units] on the host; gives which of `at` were lost.
"""


class TierStack:
    """Gathers rows of the fused weight from wherever they lie, and takes new ones.

    remote_ids: stable ids of the rows in the remote tier, in the order of their addresses. changes: what
    keeps updates for other stacks of the same rows; None: nobody does.
    """

    def __init__(
        self,
        tiers: Tiers,
        encoder: Encoder | None = None,
        remote_ids: I64 | None = None,
        changes: Changes | None = None,
    ) -> None:
        self.tiers = tiers
        self.changes = changes
        ids = np.empty(0, np.int64) if remote_ids is None else remote_ids
        if ids.size != tiers.layout.rows[REMOTE]:
            raise ValueError(f"{tiers.layout.rows[REMOTE]} rows are remote, {ids.size} ids are given")
        self.views = Views(View(0, encoder, ids))
        self._counters = Counters(tiers.layout, tiers.form.bytes, tiers.slab.page_bytes)
        self._aside = Counters(tiers.layout, tiers.form.bytes, tiers.slab.page_bytes)
        self.sample = Sample()
        self._count = threading.Lock()
        self._writer = threading.RLock()
        self._settling = threading.Lock()
        self._work = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._gathering = 0
        self._rest = threading.Condition(self._count)

    @property
    def device(self) -> torch.device:
        """Where gathered rows are."""
        return torch.device("cpu") if self.tiers.device is None else self.tiers.device.device

    def figures(self) -> Figures:
        """What has been looked up so far."""
        return self._counters.snapshot()

    def gather(self, view: View, rows: I64, out: Tensor, counted: bool = True) -> int:
        """rows: int64 [n], of the fused weight in the view's order -> out [n, units], on `device`.

        Gives how many rows neither the remote store nor a layer gave: those are out-of-vocabulary rows.
        counted: False for reads that are nobody's request.
        Raises OSError if a page of the file cannot be read, or the tiers are closed.
        """
        counters = self._counters if counted else self._aside
        with self._being_gathered():
            return self._gathered(counters, view, rows, out, counted)

    def pool(self, view: View, rows: I64, read: Read) -> int:
        """As `gather`, for who reads rows in device and host memory itself (fused.py).

        read: called with the places of the rows and which of them have new values that the tiers lack.
        """
        with self._being_gathered():
            where = Places.of(self.tiers.layout, rows)
            self.sample.note(view.order, rows)
            changed = [layer.find(rows)[0] for layer in view.layers]

            def below(at: I64, out: Tensor) -> I64:
                lost = self._below(self._counters, view, where.at(at), out)
                for layer in view.layers:
                    lost = np.setdiff1d(lost, layer.over(rows[at], out), assume_unique=True)
                return lost

            lost = read(where, np.concatenate(changed) if changed else where.local[:0], below)
            with self._count:
                self._counters.batches += 1
                self._counters.replaced += sum(c.size for c in changed)
                self._counters.fallbacks += lost.size
                self._counters.lookup(where.segment)
            return lost.size

    def pool_unplaced(self, view: View, rows: I64, read: Callable[[], None]) -> None:
        """As `pool`, for who finds out on the device where rows lie, all in device or host memory, and tells
        it later by `count`. The view must have no new values."""
        with self._being_gathered():
            self.sample.note(view.order, rows)
            read()
            with self._count:
                self._counters.batches += 1

    def count(self, lookups: I64) -> None:
        """Look-ups of each range of the layout that `pool_unplaced` had."""
        with self._count:
            self._counters.lookups += lookups

    @contextmanager
    def _being_gathered(self) -> Iterator[None]:
        with self._count:
            if self._closed.is_set():
                raise OSError("these tiers are closed")
            self._gathering += 1
        try:
            yield
        finally:
            with self._count:
                self._gathering -= 1
                if not self._gathering:
                    self._rest.notify_all()

    def _gathered(self, counters: Counters, view: View, rows: I64, out: Tensor, counted: bool) -> int:
        where = Places.of(self.tiers.layout, rows)
        if self.tiers.device is None:
            lost = self._below(counters, view, where, out)
        else:
            lost = self._with_device(self.tiers.device, counters, view, where, out)
        if counted:
            self.sample.note(view.order, rows)
        replaced = 0
        for layer in view.layers:
            given = layer.over(rows, out)
            replaced += given.size
            if lost.size:
                lost = np.setdiff1d(lost, given, assume_unique=True)
        with self._count:
            counters.batches += 1
            counters.replaced += replaced
            counters.fallbacks += lost.size
            counters.lookup(where.segment)
        return lost.size

    def _with_device(self, hot: Tensor, counters: Counters, view: View, where: Places, out: Tensor) -> I64:
        """Hot rows where they are; the rest gathered on the host and copied over (Hotline)."""
        start = clock()
        cold = np.flatnonzero(where.tier != DEVICE)
        if cold.size == where.tier.size:
            staged = self._staging(cold.size)
            lost = self._below(counters, view, where, staged)
            out.copy_(staged, non_blocking=True)
            return lost
        address = torch.from_numpy(where.address(DEVICE))
        torch.index_select(hot, 0, address.to(hot.device, non_blocking=True), out=out)
        counters.seconds["device"] += clock() - start
        if not cold.size:
            return cold
        staged = self._staging(cold.size)
        lost = self._below(counters, view, where.at(cold), staged)
        there = torch.from_numpy(cold).to(hot.device, non_blocking=True)
        out.index_copy_(0, there, staged.to(hot.device, non_blocking=True))
        return cold[lost]

    def _staging(self, rows: int) -> Tensor:
        form = self.tiers.form
        return torch.empty((rows, form.units), dtype=form.unit, pin_memory=self.device.type == "cuda")

    def _below(self, counters: Counters, view: View, where: Places, out: Tensor) -> I64:
        """Rows of host, disk and remote tiers, all in `out` [n, units] on the host.

        Gives the places of those that the remote store did not give.
        """
        remote = self.tiers.remote
        away = np.flatnonzero(where.tier == REMOTE) if remote is not None else where.local[:0]
        if remote is None or not away.size:
            self._stored(counters, where, out)
            return where.local[:0]
        start = clock()
        own = where.at(away)
        fetching = remote.ask(self.tiers.layout.table[own.segment], view.remote_ids[own.local])
        asked = clock()
        try:
            self._stored(counters, where, out)
        except BaseException:
            remote.abandon(fetching)
            raise
        waited = clock()
        values, found = remote.receive(fetching)
        out.index_copy_(0, torch.from_numpy(away), torch.from_numpy(values).view(self.tiers.form.unit))
        with self._count:
            counters.seconds["remote"] += clock() - waited + asked - start
            counters.miss(own.segment[~found])
        return away[~found]

    def _stored(self, counters: Counters, where: Places, out: Tensor) -> None:
        """Rows of host and disk tiers; whatever stands first in the slab for rows of others."""
        disk = self.tiers.disk
        below = np.flatnonzero(where.tier == DISK) if disk is not None else where.local[:0]
        if disk is not None and below.size:
            self._through_cache(disk, counters, where, below, out)
        elif self.tiers.layout.rows[HOST] == self.tiers.layout.total:
            self._from_slab(counters, self.tiers.slab.of_rows(where.local), out)
        else:
            self._from_slab(counters, self.tiers.slab.of_rows(where.address(HOST)), out)

    def _through_cache(
        self, disk: DiskTier, counters: Counters, where: Places, below: I64, out: Tensor
    ) -> None:
        start = clock()
        try:
            held = disk.acquire(where.local[below])
        except CacheTooSmall:
            half = int(below[below.size // 2])
            for part in (slice(0, half), slice(half, None)):
                self._stored(counters, where.at(part), out[part])
            return
        acquired = clock()
        try:
            disk.ready(held)
            landed = clock()
            addresses = self.tiers.slab.of_rows(where.address(HOST))
            addresses[below] = held.addresses
            self._from_slab(counters, addresses, out)
        finally:
            disk.release(held)
        with self._count:
            counters.seconds["cache"] += acquired - start
            counters.seconds["disk"] += landed - acquired
            if held.pages_read:
                counters.pages += held.pages_read
                counters.miss(where.segment[below[held.missed]])

    def _from_slab(self, counters: Counters, addresses: I64, out: Tensor) -> None:
        start = clock()
        self.tiers.slab.gather(addresses, out)
        counters.seconds["host"] += clock() - start

    def prefetch(self, rows: I64) -> int:
        """Starts reading what a waiting batch will need of the file; gives how many pages. Does not wait."""
        disk = self.tiers.disk
        if disk is None:
            return 0
        tier, local = self.tiers.layout.locate(rows)
        below = local[tier == DISK]
        pages = disk.prefetch(below) if below.size else 0
        self._counters.prefetched += pages
        return pages

    def update(self, rows: I64, values: Bytes) -> None:
        """New values of rows, visible all at once; written into the tiers behind.

        rows: int64 [n], of the fused weight in the newest order. values: uint8 [n, bytes of a row].
        """
        with self._writer:
            newest = self.views.newest
            layer = Layer(self.tiers.form, rows, values)
            self.views.install(replace(newest, layers=(*newest.layers, layer), readers=0))
        self._settle_soon()

    def reorder(self, encoder: Encoder, rows: I64, values: Bytes, remote_ids: I64) -> None:
        """A new order of the rows: the encoder that goes with it, and every row whose values change by it."""
        with self._writer:
            newest = self.views.newest
            layer = Layer(self.tiers.form, rows, values)
            # older layers lie under rows of the older order; all that moved is in the new one
            self.views.install(View(newest.order + 1, encoder, remote_ids, (*newest.layers, layer)))
        self._settle_soon()

    @property
    def writing(self) -> threading.RLock:
        """Held by who reads the newest view in order to write what follows from it."""
        return self._writer

    def settle(self, timeout_s: float | None = None) -> bool:
        """Writes every layer into the tiers; False where readers, or the remote store, were in the way."""
        with self._settling:
            while layers := self.views.newest.layers:
                if not self.views.wait_until_all_see(layers[0], timeout_s):
                    return False
                try:
                    self._write(layers[0])
                except OSError as e:
                    log.warning("new values of %d rows are not written yet: %s", layers[0].rows.size, e)
                    return False
                with self._writer:
                    newest = self.views.newest
                    self.views.install(replace(newest, layers=newest.layers[1:], readers=0))
        return True

    def _write(self, layer: Layer) -> None:
        tiers = self.tiers
        if self.device.type == "cuda":
            # who has left an older view may have left look-ups behind that the device still works on
            torch.cuda.synchronize(self.device)
        segment = tiers.layout.segments(layer.rows)
        tier, local = tiers.layout.tier[segment], tiers.layout.local(layer.rows, segment)
        away = tier == REMOTE
        # the one that may fail first: then nothing is half done but what will be done again
        if tiers.remote is not None and away.any():
            ids = self.views.newest.remote_ids[local[away]]
            tiers.remote.write(tiers.layout.table[segment[away]], ids, layer.values[away])
        if tiers.device is not None and (tier == DEVICE).any():
            hot = torch.from_numpy(layer.values[tier == DEVICE]).view(tiers.form.unit)
            where = torch.from_numpy(local[tier == DEVICE]).to(tiers.device.device)
            tiers.device.index_copy_(0, where, hot.to(tiers.device.device))
            if self.device.type == "cuda":
                # lanes read on streams of their own
                torch.cuda.synchronize(self.device)
        tiers.slab.row_bytes()[local[tier == HOST]] = layer.values[tier == HOST]
        if tiers.disk is not None and (tier == DISK).any():
            tiers.disk.write(local[tier == DISK], layer.values[tier == DISK])

    def _settle_soon(self) -> None:
        with self._writer:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._settle_on, name="polyrec-tiers", daemon=True)
                self._thread.start()
        self._work.set()

    def _settle_on(self) -> None:
        while not self._closed.is_set():
            self._work.wait()
            self._work.clear()
            while not self._closed.is_set() and not self.settle(RETRY_S):
                self._closed.wait(RETRY_S)

    def close(self) -> None:
        """Ends the tiers, once no batch is being gathered; what is asked for afterwards gets OSError."""
        if self.changes is not None:
            self.changes.leave(self)
        with self._count:
            self._closed.set()
            resting = self._rest.wait_for(lambda: not self._gathering, CLOSE_S)
        self._work.set()
        if self._thread is not None:
            self._thread.join()
        if not resting:
            # its memory and files must outlive whoever is stuck in them
            log.warning("a batch is still being gathered after %g s: its tiers stay open", CLOSE_S)
            return
        if self.tiers.disk is not None:
            self.tiers.disk.close()
        if self.tiers.remote is not None:
            self.tiers.remote.close()
