"""Gathers batches whose rows are the hottest ones of host memory, or were fetched from the store for them.

Most batches of a well-cut model are such, and need neither the search of all tiers nor anything to wait for.
`TierStack.gather` and `TierStack.resolve` do the same for any batch; tests compare them.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from polyrec.models.schema.batch import I64, Batch
from polyrec.models.tiers.figures import Counters
from polyrec.models.tiers.near.near_rows import NONE, NearRows
from polyrec.models.tiers.releasing import Gathers, PrefixReleaser
from polyrec.models.tiers.shared.resolved import Resolved
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.tier_set import TierSet
from polyrec.models.tiers.updates.sample import Sample
from polyrec.models.tiers.view import View

clock = time.perf_counter


class NearGather:
    """Gathers near and fetched rows of one stack without a device. Thread-safe.

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
            others, place = found
            start = clock()
            near.addresses(batch, address)
            # "clip" skips bounds checks, for which numpy would buffer its output; `others` get some row
            self._host_rows.take(address, 0, out, "clip")
            if others.size:
                assert view.staged is not None
                out[others] = view.staged.values.take(place, 0)
            return self._count(view, near, batch, others, place, start)

    def resolve(self, view: View, near: NearRows, batch: Batch) -> Resolved | None:
        """Locates the rows of a batch for a process that maps the slab, see `TierStack.resolve`.

        Returns None for the batches for which `gather` does.
        """
        number = self._gathers.begin()
        try:
            found = self._find(view, near, batch)
            if found is None:
                self._gathers.end(number)
                return None
            others, place = found
            start = clock()
            address = np.empty(batch.context.ranks.size + batch.candidate.ranks.size, np.int64)
            near.addresses(batch, address)
            values = self._host_rows[:0]
            if others.size:
                assert view.staged is not None
                address[others] = 0
                values = view.staged.values.take(place, 0)
            lost = self._count(view, near, batch, others, place, start)
        except BaseException:
            self._gathers.end(number)
            raise
        addresses = self._tiers.slab.row_addresses(address)
        return Resolved(addresses, others, values, lost, self._gathers, number)

    def _find(self, view: View, near: NearRows, batch: Batch) -> tuple[I64, I64] | None:
        """Returns the lookups that are not near, and their positions in `view.staged`."""
        others = None if view.layers else near.others(batch)
        if others is None:
            return None
        if not others.size:
            return others, others
        # without a disk, all `others` are in the store
        if view.staged is None or self._tiers.disk is not None or not len(self._host_rows):
            return None
        there, place = view.staged.find(near.rows(batch).take(others))
        return (others, place) if there.all() else None

    def _count(self, view: View, near: NearRows, batch: Batch, others: I64, place: I64, start: float) -> int:
        """Counts a gathered batch; returns the number of lost rows."""
        counters, lost = self._counters, NONE
        rows = near.rows(batch) if others.size or self._sample.every else NONE
        self._sample.note(view.order, rows)
        with self._counting:
            counters.batches += 1
            counters.seconds["host"] += clock() - start
            if not others.size:
                counters.lookups += near.lookups(batch)
            else:
                assert view.staged is not None
                segments = self._tiers.layout.segments(rows)
                counters.lookup(segments)
                lost = others[view.staged.lost.take(place)]
                if lost.size:
                    counters.fallbacks += lost.size
                    counters.miss(segments.take(lost))
        if self._releaser is not None:
            lookups = batch.context.ranks.size + batch.candidate.ranks.size
            self._releaser.count(lookups, lookups, near.colder(batch))
        return int(lost.size)
