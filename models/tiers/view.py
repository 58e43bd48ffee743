"""Defines views of the tiers: one row order, and the updates overlaid on it.

A view is immutable. A reader takes the newest view for one batch and returns it afterwards, so that a batch
is encoded and gathered in a single order and sees each update completely or not at all. A layer is written
into the tiers only when every reader's view contains it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.models.tiers.updates.update_layer import UpdateLayer


@dataclass(slots=True, eq=False)
class View:
    """One row order with the updates over it.

    order: its number, from 0. encoder: has the vocabularies of this order; may be None.
    remote_ids: int64 [remote rows], the stable id of each. layers: oldest first.
    readers: number of batches that hold the view.
    staged: remote rows fetched for one batch (ahead.py), below the layers.
    others: `NearRows.others` of that batch, if known. They hold as long as no rows in memory are released,
        which only happens beside a disk tier.
    """

    order: int
    encoder: Encoder | None
    remote_ids: I64
    layers: tuple[UpdateLayer, ...] = ()
    readers: int = field(default=0, repr=False)
    staged: FetchedRows | None = None
    others: I64 | None = None

    def of_batch(self, staged: FetchedRows | None, others: I64 | None) -> View:
        """Returns this view for one batch, without readers; `replace` would take ten times as long."""
        return View(self.order, self.encoder, self.remote_ids, self.layers, 0, staged, others)

    def over(self, rows: I64, out: Tensor, lost: I64) -> tuple[int, I64]:
        """Replaces updated rows in `out`; returns (number of updated rows, those still lost).

        rows: int64 [n]. out: [n, units], gathered from the tiers. lost: indices of rows that no tier
        answered.
        """
        replaced = 0
        for layer in self.layers:
            given = layer.over(rows, out)
            replaced += given.size
            if lost.size:
                lost = np.setdiff1d(lost, given, assume_unique=True)
        return replaced, lost


class Views:
    """The newest view, and older ones that still have readers. Thread-safe."""

    def __init__(self, first: View) -> None:
        self._newest = first
        self._older: list[View] = []
        self._changed = threading.Condition()

    @property
    def newest(self) -> View:
        return self._newest

    def enter(self) -> View:
        """Returns the newest view; the caller gives it back with `leave`."""
        with self._changed:
            view = self._newest
            view.readers += 1
        return view

    def leave(self, view: View) -> None:
        """Gives back a view; the last reader of an old one removes it."""
        with self._changed:
            view.readers -= 1
            if not view.readers and view is not self._newest:
                self._older.remove(view)
                self._changed.notify_all()

    def install(self, view: View) -> None:
        """Makes a view the newest one."""
        with self._changed:
            if self._newest.readers:
                self._older.append(self._newest)
            self._newest = view

    def wait_until_all_see(self, layer: UpdateLayer, timeout_s: float | None = None) -> bool:
        """Waits until every reader's view has the layer; returns False on timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(any(has is layer for has in view.layers) for view in self._older), timeout_s
            )
