"""Gathers the rows of a batch from all tiers of one bundle, with one access per tier.

Rows are located by arithmetic (`layout`). Requests to the remote store are sent first, then reads of missing
pages start; meanwhile rows in device memory are gathered. Host rows and cached pages are then one gather.
Updates are overlaid (`view`) and written into the tiers by the writer.

One stack serves any number of readers (`rows.TieredRows`, one per lane).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.vocabulary import Value
from polyrec.models.tiers.ahead import RowsAhead
from polyrec.models.tiers.disk.disk import DiskTier
from polyrec.models.tiers.figures import Counters, Figures
from polyrec.models.tiers.gathers import Gathers
from polyrec.models.tiers.layout import DEVICE, DISK, HOST, REMOTE, RowLocations
from polyrec.models.tiers.near.gather import NearGather
from polyrec.models.tiers.prefix.releasing import PrefixReleaser
from polyrec.models.tiers.shared.resolved import Resolved
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.tier_set import TierSet
from polyrec.models.tiers.updates.sample import Sample
from polyrec.models.tiers.updates.writer import Writer
from polyrec.models.tiers.view import View, Views

if TYPE_CHECKING:
    from polyrec.models.tiers.updates.changes import Changes

log = logging.getLogger("polyrec.tiers")

CLOSE_S = 10.0

clock = time.perf_counter


Read = Callable[[RowLocations, I64, Callable[[I64, Tensor], I64]], I64]
"""(locations of the lookups, which of them are updated, below) -> the lookups that no tier answered.

below(at, out) gathers the lookups `at` from the tiers below the device, with updates, into out [at.size,
units] on the host; returns which of `at` no tier answered.
"""


class TierStack:
    """Gathers rows of the fused weight from their tiers, and accepts updates.

    remote_ids: stable ids of the rows in the remote tier, in order of address.
    changes: shares updates with other stacks of the same rows; None if they are not shared.
    """

    def __init__(
        self,
        tiers: TierSet,
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
        self._writer = Writer(tiers, self.views)
        self._counters = Counters(tiers.layout, tiers.row_format.bytes, tiers.slab.page_bytes)
        self._uncounted = Counters(tiers.layout, tiers.row_format.bytes, tiers.slab.page_bytes)
        self.sample = Sample()
        self._counting = threading.Lock()
        self._gathers = Gathers()
        self.ahead = RowsAhead(tiers, self._gathers, self._counters)
        self.releaser = None
        if tiers.prefix is not None:
            self.releaser = PrefixReleaser(tiers, self._gathers, self._writer.moving, self._writer.file_soon)
        self.near = NearGather(
            tiers, self._gathers, self.sample, self._counters, self._counting, self.releaser
        )

    @property
    def device(self) -> torch.device:
        """Device of gathered rows."""
        return torch.device("cpu") if self.tiers.device is None else self.tiers.device.device

    def figures(self) -> Figures:
        """Returns the counters so far."""
        return self._counters.snapshot()

    def reset_figures(self) -> None:
        """Resets the counters; call it while nothing is gathered."""
        self._counters.reset()

    def gather(self, view: View, rows: I64, out: Tensor, counted: bool = True) -> int:
        """Gathers rows into out [n, units] on `device`. rows: int64 [n], of the fused weight in the view's
        order.

        Returns the number of rows that the remote store did not return; these are out-of-vocabulary rows.
        counted: False for reads that are not requests.
        Raises OSError if a page of the file cannot be read or the tiers are closed.
        """
        counters = self._counters if counted else self._uncounted
        with self._gathers.gathering():
            return self._gather(counters, view, rows, out, counted)

    def pool(self, view: View, rows: I64, read: Read) -> int:
        """Locates rows like `gather`, for callers that read device and host memory themselves (fused.py).

        read: called with the locations of the rows, and those of them with updates that the tiers lack.
        """
        with self._gathers.gathering():
            where = RowLocations.locate(self.tiers.layout, rows)
            self.sample.note(view.order, rows)
            changed = [layer.find(rows)[0] for layer in view.layers]

            def below(at: I64, out: Tensor) -> I64:
                return view.over(
                    rows[at], out, self._gather_on_host(self._counters, view, where.at(at), out)
                )[1]

            lost = read(where, np.concatenate(changed) if changed else where.local[:0], below)
            self._count_batch(self._counters, where, sum(c.size for c in changed), lost.size)
            return lost.size

    def pool_placed_on_device(self, view: View, rows: I64, read: Callable[[], None]) -> None:
        """Runs `read` for callers that locate rows on the device, all in device or host memory.

        They report lookups later through `count`. The view must have no updates.
        """
        with self._gathers.gathering():
            self.sample.note(view.order, rows)
            read()
            with self._counting:
                self._counters.batches += 1

    def count(self, lookups: I64) -> None:
        """Counts lookups of `pool_placed_on_device`, by range of the layout."""
        with self._counting:
            self._counters.lookups += lookups

    def _gather(self, counters: Counters, view: View, rows: I64, out: Tensor, counted: bool) -> int:
        where = self.tiers.locate(rows)
        if self.tiers.device is None:
            lost = self._gather_on_host(counters, view, where, out)
        else:
            lost = self._gather_with_device(self.tiers.device, counters, view, where, out)
        if counted:
            self.sample.note(view.order, rows)
        replaced, lost = view.over(rows, out, lost)
        self._count_batch(counters, where, replaced, lost.size)
        if counted and self.releaser is not None:
            self.releaser.count_batch(where)
        return lost.size

    def _count_batch(self, counters: Counters, where: RowLocations, replaced: int, lost: int) -> None:
        with self._counting:
            counters.batches += 1
            counters.replaced += replaced
            counters.fallbacks += lost
            counters.lookup(where.segment)

    @property
    def waits(self) -> bool:
        """Whether gathering may wait for a file or another machine."""
        return self.tiers.disk is not None or self.tiers.remote is not None

    @property
    def idle(self) -> bool:
        """Whether no batch is being gathered, in this process or in one that maps the slab."""
        return self._gathers.ended(self._gathers.begun)

    def resolve(self, view: View, rows: I64) -> Resolved:
        """Locates rows for a process that maps the slab: addresses of rows in it, values of all others.

        rows: int64 [n], of the fused weight in the view's order. The memory at these addresses does not
        change until the result is released, and the view must be held as long.
        Raises OSError as `gather` does; ValueError if rows are on a device.
        """
        tiers = self.tiers
        if tiers.device is not None:
            raise ValueError("rows on a device can only be read by the process that put them there")
        number = self._gathers.begin()
        try:
            where = tiers.locate(rows)
            away = where.tier != HOST
            for layer in view.layers:
                away[layer.find(rows)[0]] = True
            at = np.flatnonzero(away)
            values = torch.empty((at.size, tiers.row_format.units), dtype=tiers.row_format.unit)
            replaced, lost = 0, at[:0]
            if at.size:
                lost = self._gather_on_host(self._counters, view, where.at(at), values)
                replaced, lost = view.over(rows[at], values, lost)
            self.sample.note(view.order, rows)
            self._count_batch(self._counters, where, replaced, lost.size)
            if self.releaser is not None:
                self.releaser.count_batch(where)
        except BaseException:
            self._gathers.end(number)
            raise
        addresses = tiers.slab.row_addresses(where.address(HOST))
        return Resolved(addresses, at, values.view(torch.uint8).numpy(), lost.size, self._gathers, number)

    def _gather_with_device(
        self, hot: Tensor, counters: Counters, view: View, where: RowLocations, out: Tensor
    ) -> I64:
        """Gathers device rows in place, and the others on the host to copy them to the device (Hotline)."""
        start = clock()
        cold = np.flatnonzero(where.tier != DEVICE)
        if cold.size == where.tier.size:
            staged = self._staging(cold.size)
            lost = self._gather_on_host(counters, view, where, staged)
            out.copy_(staged, non_blocking=True)
            return lost
        address = torch.from_numpy(where.address(DEVICE))
        torch.index_select(hot, 0, address.to(hot.device, non_blocking=True), out=out)
        counters.seconds["device"] += clock() - start
        if not cold.size:
            return cold
        staged = self._staging(cold.size)
        lost = self._gather_on_host(counters, view, where.at(cold), staged)
        there = torch.from_numpy(cold).to(hot.device, non_blocking=True)
        out.index_copy_(0, there, staged.to(hot.device, non_blocking=True))
        return cold[lost]

    def _staging(self, rows: int) -> Tensor:
        row_format = self.tiers.row_format
        return torch.empty(
            (rows, row_format.units), dtype=row_format.unit, pin_memory=self.device.type == "cuda"
        )

    def _gather_on_host(self, counters: Counters, view: View, where: RowLocations, out: Tensor) -> I64:
        """Gathers rows of host, disk and remote tiers into `out` [n, units] on the host.

        Returns the indices of rows that the remote store did not return.
        """
        if where.in_memory:
            # updated rows of a device are requested too
            address = where.local if self.tiers.device is None else where.address(HOST)
            self._gather_from_slab(counters, self.tiers.slab.row_addresses(address), out)
            return where.local[:0]
        remote = self.tiers.remote
        away = np.flatnonzero(where.tier == REMOTE) if remote is not None else where.local[:0]
        fetched = place = lost = away[:0]
        if view.staged is not None:
            there, place = view.staged.find(where.rows[away])
            fetched, away = away[there], away[~there]
            lost = fetched[view.staged.lost[place]]
        if remote is None or not away.size:
            self._gather_stored(counters, where, out)
            if view.staged is not None:
                view.staged.copy(place, fetched, out)
            self._count_misses(counters, where, lost)
            return lost
        start = clock()
        remote_rows = where.at(away)
        tables, ids = self.tiers.layout.table[remote_rows.segment], view.remote_ids[remote_rows.local]
        pending = remote.send(tables, ids)
        sent = clock()
        try:
            self._gather_stored(counters, where, out)
        except BaseException:
            remote.abandon(pending)
            raise
        gathered = clock()
        if view.staged is not None:
            view.staged.copy(place, fetched, out)
        values, found = remote.receive(pending)
        out.index_copy_(0, torch.from_numpy(away), torch.from_numpy(values).view(self.tiers.row_format.unit))
        with self._counting:
            counters.seconds["remote"] += clock() - gathered + sent - start
        lost = np.concatenate((lost, away[~found]))
        self._count_misses(counters, where, lost)
        return lost

    def _count_misses(self, counters: Counters, where: RowLocations, lost: I64) -> None:
        """Counts rows that the remote store did not return."""
        if lost.size:
            with self._counting:
                counters.miss(where.segment[lost])

    def _gather_stored(self, counters: Counters, where: RowLocations, out: Tensor) -> None:
        """Gathers rows of host and disk tiers; rows of other tiers get the slab's first row."""
        disk = self.tiers.disk
        on_disk = np.flatnonzero(where.tier == DISK) if disk is not None else where.local[:0]
        if disk is not None and on_disk.size:
            self._gather_through_cache(disk, counters, where, on_disk, out)
        else:
            self._gather_from_slab(counters, self.tiers.slab.row_addresses(where.address(HOST)), out)

    def _gather_through_cache(
        self, disk: DiskTier, counters: Counters, where: RowLocations, on_disk: I64, out: Tensor
    ) -> None:
        """Gathers all stored rows. on_disk: the lookups of rows on disk.

        Rows that find no free slot in the first pass are gathered in further passes.
        """
        slab = self.tiers.slab
        addresses, left = slab.row_addresses(where.address(HOST)), on_disk
        while True:
            start = clock()
            held = disk.acquire(where.local[left])
            acquired = clock()
            try:
                disk.ready(held)
                landed = clock()
                if left is on_disk:
                    addresses[on_disk] = held.addresses
                    self._gather_from_slab(counters, addresses, out)
                else:
                    part = torch.empty((left.size, out.shape[1]), dtype=out.dtype)
                    self._gather_from_slab(counters, held.addresses, part)
                    out.index_copy_(0, torch.from_numpy(left), part)
            finally:
                disk.release(held)
            with self._counting:
                counters.seconds["cache"] += acquired - start
                counters.seconds["disk"] += landed - acquired
                counters.passes += 1
                if left is on_disk:
                    counters.below(where.segment[on_disk])
                if held.pages_read:
                    counters.pages += held.pages_read
                    counters.miss(where.segment[left[held.missed]])
            if not held.left.size:
                return
            left = left[held.left]

    def _gather_from_slab(self, counters: Counters, addresses: I64, out: Tensor) -> None:
        start = clock()
        self.tiers.slab.gather(addresses, out)
        counters.seconds["host"] += clock() - start

    def update(self, rows: I64, values: Bytes, encoder: Encoder | None = None) -> None:
        """Updates rows, see Writer.update."""
        self._writer.update(rows, values, encoder)

    def rename(self, added: Mapping[str, Mapping[Value, int]]) -> None:
        """Makes later batches be encoded with these values for reserved ids."""
        with self.writing:
            view = self.views.newest
            if view.encoder is not None:
                self.views.install(replace(view, encoder=view.encoder.with_added(added), readers=0))

    def reorder(self, encoder: Encoder, rows: I64, values: Bytes, remote_ids: I64) -> None:
        """Installs a new row order, see Writer.reorder."""
        self._writer.reorder(encoder, rows, values, remote_ids)

    @property
    def writing(self) -> threading.RLock:
        """Lock to hold while deriving an update from the newest view."""
        return self._writer.writing

    def settle(self, timeout_s: float | None = None) -> bool:
        """Writes pending updates into the tiers, see Writer.settle."""
        return self._writer.settle(timeout_s)

    def close(self) -> None:
        """Closes the tiers once no batch is being gathered; later gathers raise OSError."""
        if self.changes is not None:
            self.changes.leave(self)
        resting = self._gathers.close(CLOSE_S)
        self._writer.close()
        if not resting:
            # memory and files must outlive the stuck gather
            log.warning("a batch is still being gathered after %g s: its tiers stay open", CLOSE_S)
            return
        if self.tiers.disk is not None:
            self.tiers.disk.close()
        if self.tiers.remote is not None:
            self.tiers.remote.close()
