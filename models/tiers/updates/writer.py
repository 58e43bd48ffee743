"""What is written to tiers that are read meanwhile: new values of rows, and new orders of them.

Both are installed at once as a view (view) and seen by every batch that begins from then on; a thread writes
them into the tiers when no reader is left that does not see them.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import torch

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.layout import DEVICE, DISK, HOST, REMOTE
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.tier_set import TierSet
from polyrec.models.tiers.updates.delta import UpdateLayer
from polyrec.models.tiers.view import View, Views

log = logging.getLogger("polyrec.tiers")

RETRY_S = 0.2


class Writer:
    """Installs what is new in the views, and writes it into the tiers behind them. Thread-safe.

    writing: held by who reads the newest view in order to write what follows from it.
    """

    def __init__(self, tiers: TierSet, views: Views) -> None:
        self._tiers, self._views = tiers, views
        self.writing = threading.RLock()
        self._settling = threading.Lock()
        self._work = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def update(self, rows: I64, values: Bytes) -> None:
        """New values of rows, visible all at once; written into the tiers behind.

        rows: int64 [n], of the fused weight in the newest order. values: uint8 [n, bytes of a row].
        """
        with self.writing:
            newest = self._views.newest
            layer = UpdateLayer(self._tiers.row_format, rows, values)
            self._views.install(replace(newest, layers=(*newest.layers, layer), readers=0))
        self._settle_soon()

    def reorder(self, encoder: Encoder, rows: I64, values: Bytes, remote_ids: I64) -> None:
        """A new order of the rows: the encoder that goes with it, and every row whose values change by it."""
        with self.writing:
            newest = self._views.newest
            layer = UpdateLayer(self._tiers.row_format, rows, values)
            # older layers lie under rows of the older order; all that moved is in the new one
            self._views.install(View(newest.order + 1, encoder, remote_ids, (*newest.layers, layer)))
        self._settle_soon()

    def settle(self, timeout_s: float | None = None) -> bool:
        """Writes every layer into the tiers; False where readers, or the remote store, were in the way."""
        with self._settling:
            while layers := self._views.newest.layers:
                if not self._views.wait_until_all_see(layers[0], timeout_s):
                    return False
                try:
                    self._write(layers[0])
                except OSError as e:
                    log.warning("new values of %d rows are not written yet: %s", layers[0].rows.size, e)
                    return False
                with self.writing:
                    newest = self._views.newest
                    self._views.install(replace(newest, layers=newest.layers[1:], readers=0))
        return True

    def _write(self, layer: UpdateLayer) -> None:
        tiers, device = self._tiers, self._tiers.device
        if device is not None and device.is_cuda:
            # who has left an older view may have left look-ups behind that the device still works on
            torch.cuda.synchronize(device.device)
        segment = tiers.layout.segments(layer.rows)
        tier, local = tiers.layout.tier[segment], tiers.layout.local(layer.rows, segment)
        away = tier == REMOTE
        # the one that may fail first: then nothing is half done but what will be done again
        if tiers.remote is not None and away.any():
            ids = self._views.newest.remote_ids[local[away]]
            tiers.remote.write(tiers.layout.table[segment[away]], ids, layer.values[away])
        if device is not None and (tier == DEVICE).any():
            hot = torch.from_numpy(layer.values[tier == DEVICE]).view(tiers.row_format.unit)
            where = torch.from_numpy(local[tier == DEVICE]).to(device.device)
            device.index_copy_(0, where, hot.to(device.device))
            if device.is_cuda:
                # lanes read on streams of their own
                torch.cuda.synchronize(device.device)
        tiers.slab.row_bytes()[local[tier == HOST]] = layer.values[tier == HOST]
        if tiers.disk is not None and (tier == DISK).any():
            tiers.disk.write(local[tier == DISK], layer.values[tier == DISK])

    def _settle_soon(self) -> None:
        with self.writing:
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
        """Ends the thread; what is not yet written stays so."""
        self._closed.set()
        self._work.set()
        if self._thread is not None:
            self._thread.join()
