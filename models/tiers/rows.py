"""Presents tiered rows to a stage as a store like those of polyrec.models.embeddings.store, one per lane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from polyrec.models.embeddings.lookups import Lookups
from polyrec.models.embeddings.stage import Vectors
from polyrec.models.embeddings.store import first_columns, pool_gathered
from polyrec.models.powers import next_power_of_two
from polyrec.models.schema.batch import F32, I64, Batch
from polyrec.models.tiers.device.fused import FusedLookups, can_fuse
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.view import View

HOST = torch.device("cpu")


class OutdatedOrder(RuntimeError):
    """Raised when rows are looked up by ranks of an outdated order, outside of `within`."""


class TieredRows:
    """Gathers through a stack into a reused buffer. Used by one lane; not thread-safe.

    width: number of leading columns to return; None for all. Tiers hold and move whole rows, so that all
    widths of a bundle share them.
    fused: fused lookups of a whole batch if rows are on a GPU, else None.
    """

    def __init__(self, stack: TierStack, width: int | None = None) -> None:
        self.stack = stack
        self.row_format = stack.tiers.row_format
        self.rows, self.width = stack.tiers.layout.total, width or self.row_format.width
        if self.width > self.row_format.width:
            raise ValueError(f"rows have {self.row_format.width} columns, not {self.width}")
        self._order = stack.views.newest.order
        self._view: View | None = None
        self._buffer = torch.empty((0, self.row_format.units), dtype=self.row_format.unit)
        # one row, as an array without rows has no strides, which views of wider units need
        self._bytes = np.empty((1, self.row_format.bytes), np.uint8)
        self._fallbacks = 0
        self.fused = FusedLookups(stack) if can_fuse(stack) else None

    @property
    def device(self) -> torch.device:
        """Device of gathered rows; indices are always given on the host."""
        return self.stack.device

    @contextmanager
    def within(self, view: View) -> Iterator[None]:
        """Gathers in a view that the caller has entered, encodes with, and will leave.

        Outside of such a block, a reader is bound to the order in which it was opened.
        """
        self._view, self._order = view, view.order
        try:
            yield
        finally:
            self._view = None

    def gather(self, index: Tensor) -> Tensor:
        """Returns rows, float32 [n, width] on `device`, valid until the next call. index: int64 [n] on the
        host.

        Raises OutdatedOrder; OSError if a page of the disk tier cannot be read.
        """
        count = index.numel()
        if self._buffer.shape[0] < count or self._buffer.device != self.device:
            self._buffer = self.row_format.buffer(count, self.device)
        out = self._buffer[:count]
        with self._batch_view() as view:
            self._fallbacks += self.stack.gather(view, index.numpy(), out)
        return self.row_format.decode(first_columns(out, self.row_format.precision, self.width))

    def gather_near(self, near: NearRows, batch: Batch, address: I64) -> F32 | None:
        """Gathers the rows of a batch like `gather`; returns None for batches that need more than memory and
        fetched rows, or have updates.

        address: int64 [lookups], overwritten.
        """
        count = address.size
        if self._bytes.shape[0] < count:
            self._bytes = np.empty((next_power_of_two(count), self.row_format.bytes), np.uint8)
        out = self._bytes[:count]
        with self._batch_view() as view:
            lost = self.stack.near.gather(view, near, batch, address, out)
        if lost is None:
            return None
        self._fallbacks += lost
        if self.row_format.precision == "fp32":
            return out.view(np.float32)[:, : self.width]
        rows = torch.from_numpy(out).view(self.row_format.unit)
        return self.row_format.decode(first_columns(rows, self.row_format.precision, self.width)).numpy()

    def pool(self, index: Tensor, offsets: Tensor) -> Tensor:
        """Returns sums, float32 [bags, width].

        index: int64 [n], offsets: int64 [bags + 1], both on the host.
        """
        return pool_gathered(self.gather(index), offsets.to(self.device))

    def vectors(self, lookups: Lookups) -> Vectors:
        """Returns all vectors of a batch with fused lookups on `device`, valid until the next call.

        Requires `fused`. Raises the same errors as `gather`.
        """
        if self.fused is None:
            raise ValueError("lookups through these tiers are not fused")
        with self._batch_view() as view:
            vectors, lost = self.fused.vectors(view, lookups)
        self._fallbacks += lost
        return Vectors(*(part[..., : self.width] for part in vectors))

    @contextmanager
    def _batch_view(self) -> Iterator[View]:
        """Yields the view of `within`, else the newest one if its order has not changed."""
        if self._view is not None:
            yield self._view
            return
        view = self.stack.views.enter()
        try:
            if view.order != self._order:
                raise OutdatedOrder("the rows have a new order: encode and gather within one view")
            yield view
        finally:
            self.stack.views.leave(view)

    def prefetch(self, rows: I64) -> int:
        """Starts reading a queued batch's rows from the file; returns the number of pages."""
        ahead = self.stack.ahead
        return ahead.read(np.unique(ahead.missing(rows).pages)).pages

    def take_fallbacks(self) -> int:
        """Returns and resets the number of rows that the remote store did not return."""
        taken, self._fallbacks = self._fallbacks, 0
        return taken
