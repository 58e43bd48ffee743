"""Tracks the static prefix: host rows whose tables continue on disk, and how far it still reaches.

Its rows are located by arithmetic. When memory is worth more in the cache (prefix/balance.py), the rows that
were coldest in calibration are released: their slots join the cache, whose index then finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.layout import HOST, TierLayout
from polyrec.models.tiers.tier_settings import TierSettings


class Prefix:
    """Rows of host memory that can be released. Changed by one thread at a time, read by any.

    counts: accesses of each table by rank. Ranges that do not begin at rank 0, below device memory, release
    no rows.
    max_released: maximum number of rows released.
    ends: int64 [ranges of the layout], the first released row of the fused weight in each range.
    colder: int64 [ranges], the first row of the colder half of the releasable rows.
    outdated: bool [rows of host memory], by address; True if the file has an older value, since updates reach
    it late.
    """

    def __init__(self, layout: TierLayout, counts: Sequence[I64], max_released: int) -> None:
        self._layout = layout
        self._ranges = np.flatnonzero((layout.tier == HOST) & layout.is_filed)
        self._starts, self._sizes = layout.starts[self._ranges], layout.counts[self._ranges]
        self._counts = counts
        self.rows = int(self._sizes.sum())
        self.releasable = min(self.rows, max_released)
        self.released = 0
        # ranges that cannot be released end beyond all rows
        self.ends: I64 = np.full(layout.tier.size, layout.total, np.int64)
        self.ends[self._ranges] = self._starts + self._sizes
        self.colder = self._hotter(self.releasable // 2)
        self.outdated: NDArray[np.bool_] = np.zeros(layout.rows[HOST], bool)

    def hits(self, rows: I64, ranges: I64) -> int:
        """Returns the number of lookups that the colder half answers. rows, ranges: int64 [n], see
        TierLayout.
        """
        colder = int(np.count_nonzero(rows >= self.colder.take(ranges)))
        return colder - int(np.count_nonzero(rows >= self.ends.take(ranges))) if self.released else colder

    def coldest(self, count: int) -> I64:
        """Returns the next rows to release, int64 [count], of the fused weight, coldest first."""
        ends = self._hotter(count)
        rows, heat = [], []
        for i, r in enumerate(self._ranges.tolist()):
            own = np.arange(ends[r], self.ends[r])
            rows.append(own)
            heat.append(self._accesses(i)[own - self._starts[i]])
        order = np.argsort(np.concatenate(heat), kind="stable")
        return np.concatenate(rows)[order]

    def release(self, count: int) -> None:
        """Ends the prefix before its `count` coldest rows."""
        self.ends = self._hotter(count)
        self.released += count
        self.releasable -= count
        self.colder = self._hotter(self.releasable // 2)

    def _hotter(self, without: int) -> I64:
        """Returns the ends of the prefix without its `without` coldest rows."""
        ends = self.ends.copy()
        if without:
            sizes = (self.ends[self._ranges] - self._starts).tolist()
            left = [self._accesses(i)[:n] for i, n in enumerate(sizes)]
            ends[self._ranges] = self._starts + hottest(left, sum(sizes) - without)
        return ends

    def _accesses(self, i: int) -> I64:
        """Returns the accesses of one range's rows, int64 [rows], non-increasing."""
        return self._counts[int(self._layout.table[self._ranges[i]])][: self._sizes[i]]


def share_with_cache(
    placement: TierSettings, row_bytes: int, sizes: Mapping[str, int], counts: Sequence[I64]
) -> TierSettings:
    """Returns the placement with the share of memory that it requests for the cache.

    Tables with rows on disk give up their coldest host rows. sizes: rows of each table. counts: accesses of
    each table by rank.
    """
    cuts = {t: c for t, c in placement.cuts.items() if t in sizes and c.host and c.disk}
    held = sum(c.host for c in cuts.values())
    memory = held * row_bytes + placement.cache_bytes
    kept = int(memory * (1 - placement.cached)) // row_bytes
    if kept >= held:
        return placement
    ranked = dict(zip(sizes, counts, strict=True))
    heat = [ranked[t][: c.host] for t, c in cuts.items()]
    fewer = {
        table: own.model_copy(update={"host": n, "disk": own.disk + own.host - n})
        for (table, own), n in zip(cuts.items(), hottest(heat, kept), strict=True)
    }
    cache_bytes = memory - kept * row_bytes
    return placement.model_copy(update={"cuts": {**placement.cuts, **fewer}, "cache_bytes": cache_bytes})


def hottest(counts: Sequence[I64], rows: int) -> list[int]:
    """Returns, per table, how many of its rows are among the `rows` most accessed of all tables.

    Ties go to the earlier table. counts: accesses of each table, non-increasing.
    """
    low, high = 0, max((int(c[0]) for c in counts if c.size), default=0) + 1
    while high - low > 1:  # invariant: at most `rows` rows have `high` accesses or more
        middle = (low + high) // 2
        low, high = (
            (middle, high) if sum(_count_at_least(c, middle) for c in counts) > rows else (low, middle)
        )
    taken = [_count_at_least(c, high) for c in counts]
    left = rows - sum(taken)
    for i, own in enumerate(counts):
        more = min(_count_at_least(own, low) - taken[i], left)
        taken[i] += more
        left -= more
    return taken


def _count_at_least(counts: I64, min_accesses: int) -> int:
    """Returns the number of rows with at least `min_accesses` accesses."""
    return int(counts.size - np.searchsorted(counts[::-1], min_accesses))
