"""What a reader of the tiers sees: one order of the rows, and the new values laid over them.

A view is never changed. Whoever reads takes the newest, keeps it for one batch and gives it back; so a batch
is encoded and gathered in one order and sees an update whole or not at all. The tiers below are written
only when nobody reads by a view that lacks what is written.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.updates.delta import UpdateLayer


@dataclass(slots=True, eq=False)
class View:
    """order: counts the orders, from 0. encoder: the vocabularies of this order, None where nobody gave
    one. remote_ids: int64 [remote rows], the stable id of each remote row. layers: oldest first."""

    order: int
    encoder: Encoder | None
    remote_ids: I64
    layers: tuple[UpdateLayer, ...] = ()
    readers: int = field(default=0, repr=False)

    def over(self, rows: I64, out: Tensor, lost: I64) -> tuple[int, I64]:
        """Lays the new values over what the tiers gave. rows: int64 [n]; out: [n, units], theirs.

        lost: those of the n that no tier gave. Gives (how many have new values, which are still lost).
        """
        replaced = 0
        for layer in self.layers:
            given = layer.over(rows, out)
            replaced += given.size
            if lost.size:
                lost = np.setdiff1d(lost, given, assume_unique=True)
        return replaced, lost


class Views:
    """The newest view, and those that are still read. Thread-safe."""

    def __init__(self, first: View) -> None:
        self._newest = first
        self._older: list[View] = []
        self._changed = threading.Condition()

    @property
    def newest(self) -> View:
        return self._newest

    def enter(self) -> View:
        """The newest view, to be given back by `leave`."""
        with self._changed:
            view = self._newest
            view.readers += 1
        return view

    def leave(self, view: View) -> None:
        with self._changed:
            view.readers -= 1
            if not view.readers and view is not self._newest:
                self._older.remove(view)
                self._changed.notify_all()

    def install(self, view: View) -> None:
        """Makes it the newest."""
        with self._changed:
            if self._newest.readers:
                self._older.append(self._newest)
            self._newest = view

    def wait_until_all_see(self, layer: UpdateLayer, timeout_s: float | None = None) -> bool:
        """Until nobody reads by a view without the layer; False if that took longer."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(any(has is layer for has in view.layers) for view in self._older), timeout_s
            )
