"""Implements caching policies to compare tiers with: LRU, S3-FIFO, Belady.

All take lookups one by one, as int64 rows of all tables together; caches are warmed up by those of training
rows. Sizes are in rows.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

import numpy as np

from polyrec.models.schema.batch import I64


def lru(warm: I64, held_out: I64, size: int) -> float:
    """Returns the hit rate of LRU on `held_out`, after the lookups `warm`. size: rows in the cache."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for phase, lookups in enumerate((warm, held_out)):
        for row in lookups.tolist():
            if row in cache:
                cache.move_to_end(row)
                hits += phase
            else:
                cache[row] = None
                if len(cache) > size:
                    cache.popitem(last=False)
    return hits / held_out.size


def s3_fifo(warm: I64, held_out: I64, size: int) -> float:
    """Returns the hit rate of S3-FIFO (Yang et al., SOSP 2023), with the parameters of libcachesim."""
    small_size = max(int(size * 0.1), 1)
    small: OrderedDict[int, int] = OrderedDict()
    main: OrderedDict[int, int] = OrderedDict()
    evicted: OrderedDict[int, None] = OrderedDict()

    def make_room() -> None:
        while len(small) + len(main) >= size:
            if small and (len(small) >= small_size or not main):
                row, uses = small.popitem(last=False)
                if uses > 1:
                    main[row] = 0
                    continue
                evicted[row] = None
                if len(evicted) > size * 0.9:
                    evicted.popitem(last=False)
            else:
                row, uses = main.popitem(last=False)
                if uses:
                    main[row] = min(uses, 3) - 1

    hits = 0
    for phase, lookups in enumerate((warm, held_out)):
        for row in lookups.tolist():
            queue = small if row in small else main
            if row in queue:
                queue[row] += 1
                hits += phase
                continue
            returns = row in evicted
            if returns:
                del evicted[row]
            make_room()
            (main if returns else small)[row] = 0
    return hits / held_out.size


def belady(held_out: I64, size: int) -> float:
    """Returns the highest hit rate of any cache on `held_out` (Belady).

    It evicts the row whose next lookup is farthest in the future, starts with the rows that are looked up
    first, and does not cache a row that would be evicted before its next lookup.
    """
    never = held_out.size
    order = np.argsort(held_out, kind="stable")
    ahead = np.full(held_out.size, never)
    same = held_out[order][1:] == held_out[order][:-1]
    ahead[order[:-1][same]] = order[1:][same]
    rows, first = np.unique(held_out, return_index=True)
    sooner = np.argsort(first)[:size]
    # cached row -> its next lookup; the heap has these, latest first, and outdated entries
    cached = dict(zip(rows[sooner].tolist(), first[sooner].tolist(), strict=True))
    latest = [(-when, row) for row, when in cached.items()]
    heapq.heapify(latest)
    hits = 0
    for row, then in zip(held_out.tolist(), ahead.tolist(), strict=True):
        if row in cached:
            hits += 1
        elif len(cached) >= size:
            while cached.get(latest[0][1]) != -latest[0][0]:
                heapq.heappop(latest)
            if -latest[0][0] <= then:
                continue
            del cached[heapq.heappop(latest)[1]]
        cached[row] = then
        heapq.heappush(latest, (-then, row))
    return hits / held_out.size
