"""Reads rows ahead of the batch that will gather them: which ones are missing, and how they come to hand.

Pages of the file are read into the slab, where they stay until a batch uses them. Rows of the remote store
are fetched into a layer of their own, which the view of the batch then has below its updates. Either way the
batch gathers the same values as without, and only waits less.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.figures import Counters
from polyrec.models.tiers.layout import DISK, REMOTE
from polyrec.models.tiers.releasing import Gathers
from polyrec.models.tiers.tier_set import TierSet
from polyrec.models.tiers.updates.delta import UpdateLayer
from polyrec.models.tiers.view import View

clock = time.perf_counter


class MissingRows(NamedTuple):
    """What a batch needs from slow tiers.

    pages: int64 [n], those of the disk tier's file whose rows are not cached. unread: how many of them are
    not in memory. remote: int64 [m], rows of the fused weight that the remote store has. All distinct.
    """

    pages: I64
    unread: int
    remote: I64


class RowsAhead:
    """Reads ahead for one stack. Thread-safe.

    gathers, counters: of the stack.
    """

    def __init__(self, tiers: TierSet, gathers: Gathers, counters: Counters) -> None:
        self._tiers, self._gathers, self._counters = tiers, gathers, counters

    def missing(self, rows: I64) -> MissingRows:
        """Finds what a batch of rows needs from slow tiers; changes nothing, and does not wait.

        rows: int64 [n], of the fused weight.
        """
        tiers = self._tiers
        where = tiers.locate(rows)
        pages = remote = rows[:0]
        unread = 0
        if tiers.disk is not None:
            below = where.local[where.tier == DISK]
            if below.size:
                pages, unread = tiers.disk.missing(below)
        if tiers.remote is not None:
            remote = np.unique(rows[where.tier == REMOTE])
        return MissingRows(pages, unread, remote)

    def read(self, pages: I64) -> tuple[int, ...]:
        """Starts the reads of pages that are not in memory, without waiting; returns tickets for `wait`.

        As far as there is room, all of them stay until a batch uses them.
        """
        disk = self._tiers.disk
        if disk is None or not pages.size:
            return ()
        ahead = disk.prefetch(pages)
        self._counters.prefetched += ahead.pages
        return ahead.tickets

    def wait(self, tickets: tuple[int, ...]) -> None:
        """Waits for reads that `read` has started; from any thread."""
        if self._tiers.disk is not None:
            self._tiers.disk.wait(tickets)

    def fetch(self, view: View, rows: I64) -> UpdateLayer | None:
        """Fetches remote rows, with the updates of a view, to be `View.staged` of a batch in the same order.

        rows: int64 [n], distinct, of the fused weight in the view's order. The view must be held until the
        batch has entered its own, so that no later update has left the newest view before the batch sees it.
        Rows that the store does not give in time are left out; None if there are no others. Raises OSError if
        the tiers are closed.
        """
        tiers = self._tiers
        if tiers.remote is None or not rows.size:
            return None
        with self._gathers.one():
            start = clock()
            where = tiers.locate(rows)
            tables, ids = tiers.layout.table[where.segment], view.remote_ids[where.local]
            values, found = tiers.remote.receive(tiers.remote.send(tables, ids))
            self._counters.seconds["remote"] += clock() - start
        at = np.flatnonzero(found)
        if not at.size:
            return None
        rows, values = rows[at], values[at]
        view.over(rows, torch.from_numpy(values).view(tiers.row_format.unit), at[:0])
        return UpdateLayer(tiers.row_format, rows, values)
