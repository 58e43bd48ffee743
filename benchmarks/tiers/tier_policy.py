"""Simulates the tiers' choice of rows in memory, with the same prefix, cache and split as a server."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.tiers.traces import Trace
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.row_cache import RowCache
from polyrec.models.tiers.disk.row_index import NOWHERE
from polyrec.models.tiers.prefix.balance import Balance
from polyrec.models.tiers.tier_settings import CACHED

BATCH = 1024


class TierPolicy:
    """A static prefix of the rows with the highest calibration counts, and a cache of the others.

    size: rows in memory. cached: initial share of them in the cache. kept: whether the prefix never changes.
    """

    def __init__(self, trace: Trace, size: int, cached: float = CACHED, kept: bool = False) -> None:
        counts = trace.counts
        order = np.argsort(-counts, kind="stable")[: min(size, np.count_nonzero(counts))]
        self.prefix = min(int(size * (1 - cached)), order.size)
        self._order, self._kept = order, kept
        self._rank = np.full(trace.rows, trace.rows)
        self._rank[order] = np.arange(order.size)
        self.cache = RowCache(trace.rows, size - self.prefix, self.prefix, self.prefix)
        self.cache.fill(order[self.prefix :])
        self._split = Balance()

    def look_up(self, rows: I64) -> int:
        """Returns the hits of a batch; only the first lookup of a missing row is a miss."""
        rank = self._rank.take(rows)
        below = np.flatnonzero(rank >= self.prefix)
        colder = int((rank >= self.prefix - self.prefix // 2).sum()) - below.size
        before = self.cache.returned
        slots = self.cache.find(rows[below])
        found = slots != NOWHERE
        self.cache.use(slots[found])
        missing, repeats = np.unique(rows[below[~found]], return_counts=True)
        order = np.argsort(-repeats, kind="stable")
        self.cache.claim(missing[order], repeats[order] - 1)
        self._split.count_batch(rows.size, rows.size - below.size, colder, self.cache.returned - before)
        if not self._kept and (count := self._split.due(self.prefix, self.cache.remembered)):
            released = np.arange(self.prefix - 1, self.prefix - count - 1, -1)
            self.cache.join(self._order[released], released)
            self.prefix -= count
        return rows.size - missing.size


def hits_by_batch(policy: TierPolicy, lookups: I64) -> Iterator[int]:
    for start in range(0, lookups.size, BATCH):
        yield policy.look_up(lookups[start : start + BATCH])
