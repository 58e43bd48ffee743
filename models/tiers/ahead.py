"""Reads rows ahead of the batch that will gather them.

Pages of the file are read into the slab, where they stay until a batch uses them. Rows of the remote store
are fetched for one batch and become part of that batch's view, below its updates. Either way the batch
gathers the same values as without reading ahead, and only waits less.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.disk import NO_READS, ReadAhead
from polyrec.models.tiers.figures import Counters
from polyrec.models.tiers.gathers import Gathers
from polyrec.models.tiers.layout import DISK, REMOTE
from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.models.tiers.tier_set import TierSet
from polyrec.models.tiers.view import View

if TYPE_CHECKING:
    from polyrec.models.tiers.remote.remote import PendingBatch

clock = time.perf_counter

NONE: I64 = np.empty(0, np.int64)
NO_FLAGS: NDArray[np.bool_] = np.empty(0, bool)


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A sent request for remote rows.

    number: number of the gather it belongs to. rows: int64 [n], rows of the fused weight in the order of
    `view`.
    sent_s: send time by `clock`.
    """

    number: int
    view: View
    rows: I64
    batch: PendingBatch
    sent_s: float


@dataclass(frozen=True, slots=True)
class MissingRows:
    """Those of some lookups whose rows are in slow tiers.

    filed: int64 [n], lookups of the disk tier that are not cached. pages: the page of each. waits: bool [n],
    whether a batch would wait for that page. remote: int64 [m], lookups of the remote store. remote_rows:
    their rows of the fused weight.
    """

    filed: I64
    pages: I64
    waits: NDArray[np.bool_]
    remote: I64
    remote_rows: I64

    @property
    def nothing(self) -> bool:
        """Whether a batch would not wait for anything."""
        return not self.remote.size and not self.waits.any()

    def counts(self, owner: I64, owners: int) -> tuple[I64, I64]:
        """Returns the number of distinct pages to wait for and of distinct remote rows, int64 [owners] each.

        owner: int64 [lookups], the owner of each lookup.
        """
        waits, pages, rows = self.waits, self.pages[self.waits], self.remote_rows
        return _distinct(owner[self.filed[waits]], pages, owners), _distinct(owner[self.remote], rows, owners)

    def distinct(self, owns: NDArray[np.bool_] | None) -> tuple[I64, I64]:
        """Returns the distinct pages and remote rows of selected lookups. owns: bool [lookups]; None for
        all.
        """
        pages, remote = self.pages, self.remote_rows
        if owns is not None:
            pages, remote = pages[owns[self.filed]], remote[owns[self.remote]]
        return _unique(pages), _unique(remote)

    @property
    def pages_to_wait_for(self) -> int:
        """Number of distinct pages for which a batch would wait."""
        return int(_unique(self.pages[self.waits]).size) if self.pages.size else 0


def _unique(values: I64) -> I64:
    """Returns the distinct values, ascending; for the few of one query faster than `np.unique`.

    The empty case is common, as usually only one tier misses rows.
    """
    if not values.size:
        return values
    ordered = np.sort(values)
    is_first = np.empty(ordered.size, bool)
    is_first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], is_first[1:])
    return ordered[is_first]


def _distinct(owner: I64, value: I64, owners: int) -> I64:
    """Returns the number of distinct values per owner, int64 [owners]."""
    if not value.size:
        return np.zeros(owners, np.int64)
    order = np.lexsort((value, owner))
    owner, value = owner[order], value[order]
    first = np.ones(owner.size, bool)
    first[1:] = (owner[1:] != owner[:-1]) | (value[1:] != value[:-1])
    return np.bincount(owner[first], minlength=owners)


class RowsAhead:
    """Reads ahead for one stack. Thread-safe.

    gathers, counters: those of the stack.
    """

    def __init__(self, tiers: TierSet, gathers: Gathers, counters: Counters) -> None:
        self._tiers, self._gathers, self._counters = tiers, gathers, counters

    def missing(self, rows: I64) -> MissingRows:
        """Finds the rows that a batch needs from slow tiers, without side effects and without waiting.

        rows: int64 [n], rows of the fused weight.
        """
        tiers = self._tiers
        filed, pages, waits = NONE, NONE, NO_FLAGS
        if tiers.disk is None:
            # no rows of memory can have moved to a disk, so that ranges alone tell the tier
            tier = tiers.layout.tier.take(tiers.layout.segments(rows))
        else:
            where = tiers.locate(rows)
            tier = where.tier
            filed = (tier == DISK).nonzero()[0]
            if filed.size:
                away, pages, waits = tiers.disk.missing(where.local[filed])
                filed = filed[away]
        remote = (tier == REMOTE).nonzero()[0]
        return MissingRows(filed, pages, waits, remote, rows.take(remote))

    def read(self, pages: I64) -> ReadAhead:
        """Starts reading those of the distinct `pages` that are not in memory; `wait` takes the tickets.

        Pages stay in memory until a batch uses them, as far as there is space.
        """
        disk = self._tiers.disk
        if disk is None or not pages.size:
            return NO_READS
        ahead = disk.prefetch(pages)
        self._counters.prefetched += ahead.pages
        return ahead

    def wait(self, tickets: tuple[int, ...]) -> None:
        """Waits for reads that `read` started. May be called from any thread."""
        if self._tiers.disk is not None:
            self._tiers.disk.wait(tickets)

    def send(self, view: View, rows: I64, at_once: bool = False) -> Fetch | None:
        """Requests remote rows; returns the request for `receive`, or None if there is nothing to fetch.

        rows: int64 [n], distinct rows of the fused weight in the view's order. The caller must hold the view
        until the batch has entered its own, so that no later update leaves the newest view before the batch
        sees it.
        at_once: returns None also if it might wait, as for a connection.
        Raises OSError if the tiers are closed.
        """
        tiers = self._tiers
        if tiers.remote is None or not rows.size:
            return None
        number = self._gathers.begin()
        try:
            segment = tiers.layout.segments(rows)
            tables = tiers.layout.table.take(segment)
            ids = view.remote_ids.take(tiers.layout.local(rows, segment))
            batch = tiers.remote.send_at_once(tables, ids) if at_once else tiers.remote.send(tables, ids)
        except BaseException:
            self._gathers.end(number)
            raise
        if batch is None:
            self._gathers.end(number)
            return None
        return Fetch(number, view, rows, batch, clock())

    def abandon(self, fetch: Fetch) -> None:
        """Discards a request; call this instead of `receive`."""
        assert self._tiers.remote is not None
        self._tiers.remote.abandon(fetch.batch)
        self._gathers.end(fetch.number)

    def receive(self, fetch: Fetch) -> FetchedRows:
        """Returns the fetched rows with the view's updates, for `View.staged` of a batch in the same row
        order.

        Waits for the replies, at most for the store's timeout.
        """
        tiers, rows, view = self._tiers, fetch.rows, fetch.view
        assert tiers.remote is not None
        try:
            values, found = tiers.remote.receive(fetch.batch)
            self._counters.seconds["remote"] += clock() - fetch.sent_s
        finally:
            self._gathers.end(fetch.number)
        lost = ~found
        if view.layers:
            out = torch.from_numpy(values).view(tiers.row_format.unit)
            _, still = view.over(rows, out, np.flatnonzero(lost))
            lost[:] = False
            lost[still] = True
        return FetchedRows.from_unsorted(rows, values, lost)
