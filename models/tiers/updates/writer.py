"""Writes updates and new row orders into tiers that are being read.

Both are installed atomically as a view (`view`), which every later batch sees. A thread writes them into the
tiers once all readers see them.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import numpy as np
import torch

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.layout import DEVICE, DISK, HOST, REMOTE
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.tier_set import TierSet
from polyrec.models.tiers.updates.update_layer import UpdateLayer
from polyrec.models.tiers.view import View, Views
from polyrec.models.transfer import wait_for

log = logging.getLogger("polyrec.tiers")

RETRY_S = 0.2
MAX_LAYERS = 8
"""Number of layers from which new ones absorb earlier ones; they are seldom more than three."""
LATE_EVERY_S = 60.0
"""Time between log lines about values that the remote store does not take."""
FAILED_S = 1.0
"""Pause after an unexpected error, each of which is logged."""


class Writer:
    """Installs views and writes their layers into the tiers. Thread-safe.

    writing: lock to hold while deriving an update from the newest view.
    moving: lock held while rows are written into the host and disk tiers.
    """

    def __init__(self, tiers: TierSet, views: Views) -> None:
        self._tiers, self._views = tiers, views
        self.writing = threading.RLock()
        self.moving = threading.Lock()
        self._settling = threading.Lock()
        self._work = threading.Event()
        self._late_s = -LATE_EVERY_S
        self._to_file: I64 = np.empty(0, np.int64)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def update(self, rows: I64, values: Bytes, encoder: Encoder | None = None) -> None:
        """Makes new values of rows visible atomically; writes them into the tiers in the background.

        rows: int64 [n], of the fused weight in the newest order. values: uint8 [n, bytes per row].
        encoder: encodes the batches that see the values, for the same order; None: the present one.
        """
        with self.writing:
            newest = self._views.newest
            layers = self._with(newest.layers, UpdateLayer(self._tiers.row_format, rows, values))
            self._views.install(replace(newest, encoder=encoder or newest.encoder, layers=layers, readers=0))
        self._settle_soon()

    def _with(self, layers: tuple[UpdateLayer, ...], layer: UpdateLayer) -> tuple[UpdateLayer, ...]:
        """Adds a layer. Beyond MAX_LAYERS it absorbs earlier ones that are not much larger.

        So the number of layers, each of which every batch searches, grows with the logarithm of the rows that
        wait for a store that is down.
        """
        while len(layers) >= MAX_LAYERS and layers[-1].rows.size <= 2 * layer.rows.size:
            *rest, last = layers
            layers = tuple(rest)
            both = np.concatenate((last.rows, layer.rows)), np.concatenate((last.values, layer.values))
            layer = UpdateLayer(self._tiers.row_format, *both)
        return (*layers, layer)

    def reorder(self, encoder: Encoder, rows: I64, values: Bytes, remote_ids: I64) -> None:
        """Installs a new row order: its encoder, and the values of every row that moves."""
        with self.writing:
            newest = self._views.newest
            layer = UpdateLayer(self._tiers.row_format, rows, values)
            # older layers use the old order, but every row that moved is in the new layer
            self._views.install(View(newest.order + 1, encoder, remote_ids, (*newest.layers, layer)))
        self._settle_soon()

    def settle(self, timeout_s: float | None = None) -> bool:
        """Writes every layer into the tiers; returns False if readers or the remote store prevented it."""
        with self._settling:
            while layers := self._views.newest.layers:
                if not self._views.wait_until_all_see(layers[0], timeout_s):
                    return False
                try:
                    self._write(layers[0])
                except OSError as e:
                    now_s = time.monotonic()
                    if now_s - self._late_s >= LATE_EVERY_S:
                        self._late_s = now_s
                        rows = sum(layer.rows.size for layer in self._views.newest.layers)
                        log.warning("new values of %d rows are not written yet: %s", rows, e)
                    return False
                with self.writing:
                    newest = self._views.newest
                    self._views.install(replace(newest, layers=newest.layers[1:], readers=0))
        return True

    def _write(self, layer: UpdateLayer) -> None:
        tiers, device = self._tiers, self._tiers.device
        if device is not None and device.is_cuda:
            # readers of an older view may have left lookups that the device is still executing
            wait_for(device.device)
        segment = tiers.layout.segments(layer.rows)
        tier, local = tiers.layout.tier[segment], tiers.layout.local(layer.rows, segment)
        away = tier == REMOTE
        # the remote store first, as it may fail; repeating a write is harmless
        if tiers.remote is not None and away.any():
            ids = self._views.newest.remote_ids[local[away]]
            tiers.remote.write(tiers.layout.table[segment[away]], ids, layer.values[away])
        if device is not None and (tier == DEVICE).any():
            hot = torch.from_numpy(layer.values[tier == DEVICE]).view(tiers.row_format.unit)
            where = torch.from_numpy(local[tier == DEVICE]).to(device.device)
            device.index_copy_(0, where, hot.to(device.device))
            if device.is_cuda:
                # lanes read on streams of their own
                wait_for(device.device)
        with self.moving:
            self._write_stored(layer)

    def _write_stored(self, layer: UpdateLayer) -> None:
        tiers = self._tiers
        where = tiers.locate(layer.rows)
        if tiers.disk is not None:
            filed = np.flatnonzero(where.tier == DISK)
            tiers.disk.write(where.local[filed], layer.values[filed])
        held = where.tier == HOST
        slots = where.local[held]
        if tiers.prefix is not None:
            # written to the file only when they are released, because most updates are of hot rows
            tiers.prefix.outdated[slots] = True
        tiers.slab.row_bytes()[slots] = layer.values[held]

    def file_soon(self, rows: I64) -> None:
        """Schedules host rows to be written to the file, from which they are read once released.

        rows: int64 [n], of the fused weight, whose values in the file are outdated.
        """
        self._to_file = rows
        # no lock, because lanes call this; the thread runs, since an update made the rows outdated
        self._work.set()

    def _file(self) -> None:
        """Writes the rows last passed to `file_soon`, if they are still in host memory."""
        tiers, rows = self._tiers, self._to_file
        if tiers.disk is None or tiers.prefix is None or not rows.size:
            return
        self._to_file = rows[:0]
        with self.moving:
            where = tiers.locate(rows)
            here = np.flatnonzero(where.tier == HOST)
            here = here[tiers.prefix.outdated.take(where.local[here])]
            slots = where.local[here]
            addresses = tiers.layout.filed_address(rows[here], where.segment[here])
            try:
                tiers.disk.write(addresses, tiers.slab.row_bytes()[slots])
            except OSError as e:
                log.warning("%d rows cannot be released yet: '%s': %s", slots.size, tiers.disk.path, e)
                return
            tiers.prefix.outdated[slots] = False

    def _settle_soon(self) -> None:
        with self.writing:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._settle_periodically, name="polyrec-tiers", daemon=True
                )
                self._thread.start()
        self._work.set()

    def _settle_periodically(self) -> None:
        while not self._closed.is_set():
            self._work.wait()
            self._work.clear()
            while not self._closed.is_set() and not self._has_settled():
                self._closed.wait(RETRY_S)

    def _has_settled(self) -> bool:
        """Writes pending values; returns False if this must be retried, even after an unexpected error.

        If such an error ended the thread, each update would add a layer that every later batch has to search.
        """
        try:
            self._file()
            return self.settle(RETRY_S)
        except Exception:
            log.exception("new values are not written yet")
            self._closed.wait(FAILED_S)
            return False

    def close(self) -> None:
        """Stops the thread; pending layers are not written."""
        self._closed.set()
        self._work.set()
        if self._thread is not None:
            self._thread.join()
