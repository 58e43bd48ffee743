"""Rows in tiers as a stage sees them: a store like those of polyrec.models.embeddings.store, one for each
lane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from polyrec.models.embeddings.lookups import Lookups
from polyrec.models.embeddings.stage import Vectors
from polyrec.models.embeddings.store import pool_gathered
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.device.fused import FusedLookups, can_fuse
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.view import View

HOST = torch.device("cpu")


class OutdatedOrder(RuntimeError):
    """Rows were asked for by ranks of an order that is no longer the newest, outside of `generation`."""


class TieredRows:
    """Gathers through a stack into a buffer kept between calls. Belongs to one lane: not thread-safe.

    fused: look-ups of a whole batch in one pass, where rows are on a GPU; None elsewhere.
    """

    def __init__(self, stack: TierStack) -> None:
        self.stack = stack
        self.row_format = stack.tiers.row_format
        self.rows, self.width = stack.tiers.layout.total, self.row_format.width
        self._order = stack.views.newest.order
        self._view: View | None = None
        self._buffer = torch.empty((0, self.row_format.units), dtype=self.row_format.unit)
        self._fallbacks = 0
        self.fused = FusedLookups(stack) if can_fuse(stack) else None

    @property
    def device(self) -> torch.device:
        """Where gathered rows are; look-ups are given on the host, whichever it is."""
        return self.stack.device

    @contextmanager
    def generation(self) -> Iterator[View]:
        """One order and its updates, for one batch: encode with its encoder, gather, all within.

        Whoever reads so follows new orders; whoever does not is bound to the order that it was opened with.
        """
        view = self.stack.views.enter()
        try:
            with self.within(view):
                yield view
        finally:
            self.stack.views.leave(view)

    @contextmanager
    def within(self, view: View) -> Iterator[None]:
        """Gathers in a view that somebody else has entered, encoded with, and will leave."""
        self._view, self._order = view, view.order
        try:
            yield
        finally:
            self._view = None

    def gather(self, index: Tensor) -> Tensor:
        """index: int64 [n] on the host -> float32 [n, width] on `device`, valid until the next call.

        Raises OlderOrder; OSError if a page of the disk tier cannot be read.
        """
        wanted = index.numel()
        if self._buffer.shape[0] < wanted or self._buffer.device != self.device:
            shape = (1 << max(wanted - 1, 0).bit_length(), self.row_format.units)
            self._buffer = torch.empty(shape, dtype=self.row_format.unit, device=self.device)
        out = self._buffer[:wanted]
        with self._seen() as view:
            self._fallbacks += self.stack.gather(view, index.numpy(), out)
        return self.row_format.decode(out)

    def pool(self, index: Tensor, offsets: Tensor) -> Tensor:
        """index: int64 [n], offsets: int64 [bags + 1], both on the host -> float32 [bags, width], sums."""
        return pool_gathered(self.gather(index), offsets.to(self.device))

    def vectors(self, lookups: Lookups) -> Vectors:
        """All vectors of a batch in one pass on `device`, where `fused` is given; valid until the next call.

        Raises as `gather`.
        """
        if self.fused is None:
            raise ValueError("look-ups through these tiers are not fused")
        with self._seen() as view:
            vectors, lost = self.fused.vectors(view, lookups)
        self._fallbacks += lost
        return vectors

    @contextmanager
    def _seen(self) -> Iterator[View]:
        """What this batch sees: the view of `generation`, else the newest if its order is still ours."""
        if self._view is not None:
            yield self._view
            return
        view = self.stack.views.enter()
        try:
            if view.order != self._order:
                raise OutdatedOrder("the rows have a new order: encode and gather within `generation()`")
            yield view
        finally:
            self.stack.views.leave(view)

    def prefetch(self, rows: I64) -> int:
        """Starts reading what a waiting batch will look up; gives how many pages of the file that are."""
        return self.stack.prefetch(rows)

    def take_fallbacks(self) -> int:
        """Rows since the last call that the remote store did not give: out-of-vocabulary rows instead."""
        taken, self._fallbacks = self._fallbacks, 0
        return taken
