"""Gathers batches whose rows are the hottest ones of host memory, or were fetched from the store for them.

Most batches of a well-cut model are such. They need no search of the tiers and wait for nothing.
`TierStack.gather` and `TierStack.resolve` do the same for any batch; tests compare them.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import numpy as np

from polyrec.models.schema.batch import I64, Batch
from polyrec.models.tiers.figures import Counters
from polyrec.models.tiers.gathers import Gathers
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.prefix.releasing import PrefixReleaser
from polyrec.models.tiers.shared.resolved import Resolved
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.tier_set import TierSet
from polyrec.models.tiers.updates.sample import Sample
from polyrec.models.tiers.view import View

clock = time.perf_counter

NONE: I64 = np.empty(0, np.int64)


class NearBatch(NamedTuple):
    """Where the rows of a batch are.

    rows: int64 [lookups], of the fused weight; empty if all are near and none are sampled.
    others: int64 [n], lookups whose rows were fetched. values: uint8 [n, bytes per row], these rows.
    lost: int64 [m], those of `others` that the store did not return.
    """

    rows: I64
    others: I64
    values: Bytes
    lost: I64


class NearGather:
    """Gathers near and fetched rows of one stack. Thread-safe.

    gathers, sample, counters, counting, releaser: those of the stack.
    """

    def __init__(
        self,
        tiers: TierSet,
        gathers: Gathers,
        sample: Sample,
        counters: Counters,
        counting: threading.Lock,
        releaser: PrefixReleaser | None,
    ) -> None:
        self._tiers, self._gathers, self._sample = tiers, gathers, sample
        self._counters, self._counting, self._releaser = counters, counting, releaser
        self._host_rows = tiers.slab.row_bytes()
        # rows that are not near are all in the store, if there is neither a disk nor a device
        self._fetches = tiers.disk is None and tiers.device is None and len(self._host_rows) > 0

    def gather(self, view: View, near: NearRows, batch: Batch, address: I64, out: Bytes) -> int | None:
        """Gathers the rows of a batch.

        address: int64 [lookups], overwritten. out: uint8 [lookups, bytes per row].
        Returns the number of rows that the store did not return; None, with nothing done, for other batches
        and for views with updates. Raises OSError if the tiers are closed.
        """
        # first, so that no slot that `_find` has seen is given to another row
        with self._gathers.gathering():
            found = self._find(view, near, batch)
            if found is None:
                return None
            start = clock()
            near.addresses(batch, address)
            # "clip" skips bounds checks, for which numpy would buffer its output; `others` get some row
            self._host_rows.take(address, 0, out, "clip")
            if found.others.size:
                out[found.others] = found.values
            self._count(view, near, batch, found, clock() - start)
            return int(found.lost.size)

    def resolve(self, view: View, near: NearRows, batch: Batch) -> Resolved | None:
        """Locates the rows of a batch for a process that maps the slab, see `TierStack.resolve`.

        Returns None, with nothing done, for the batches for which `gather` does. Never waits: rows of the
        prefix that are due to be released are left to a batch that is resolved by the stack.
        """
        number = self._gathers.begin()  # ended by `Resolved.release`
        try:
            found = self._find(view, near, batch)
            if found is None:
                self._gathers.end(number)
                return None
            address = np.empty(batch.context.ranks.size + batch.candidate.ranks.size, np.int64)
            near.addresses(batch, address)
            address[found.others] = 0
            self._count(view, near, batch, found, 0.0, release=False)
        except BaseException:
            self._gathers.end(number)
            raise
        addresses = self._tiers.slab.row_addresses(address)
        return Resolved(addresses, found.others, found.values, found.lost.size, self._gathers, number)

    def _find(self, view: View, near: NearRows, batch: Batch) -> NearBatch | None:
        """Finds the rows of a batch; None if some are neither near nor fetched."""
        if view.layers:
            return None
        staged, others = (view.staged, view.others) if self._fetches else (None, None)
        if others is None:
            others = near.others(batch)
        if others is None or (others.size and staged is None):
            return None
        rows = near.rows(batch) if others.size or self._sample.every else NONE
        if staged is None or not others.size:
            return NearBatch(rows, NONE, self._host_rows[:0], NONE)
        there, place = staged.find(rows.take(others))
        if not there.all():
            return None
        return NearBatch(rows, others, staged.values.take(place, 0), others[staged.lost.take(place)])

    def _count(
        self, view: View, near: NearRows, batch: Batch, found: NearBatch, host_s: float, release: bool = True
    ) -> None:
        """Counts a batch. host_s: seconds of reading host memory. release: see `PrefixReleaser.count`."""
        counters, lost = self._counters, found.lost
        self._sample.note(view.order, found.rows)
        with self._counting:
            counters.batches += 1
            counters.seconds["host"] += host_s
            if found.others.size:
                segments = self._tiers.layout.segments(found.rows)
                counters.lookup(segments)
                if lost.size:
                    counters.fallbacks += lost.size
                    counters.miss(segments.take(lost))
            else:
                counters.lookups += near.lookups(batch)
        if self._releaser is not None:
            lookups = batch.context.ranks.size + batch.candidate.ranks.size
            self._releaser.count(lookups, lambda: (lookups, near.colder(batch)), release)
