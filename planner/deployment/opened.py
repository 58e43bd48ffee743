"""Computes the cuts that a server makes when it opens tiers, and the share of a batch answered by each tier.

For tables with rows on disk, half of the memory is a static prefix and half a cache
(models/tiers/tier_settings.py). Tables that fit in memory have no cache. A cache is modeled as a static
prefix of the next hottest rows, with a length of its slots times their measured worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyrec.models.tiers.disk.cache_division import divide_cache
from polyrec.models.tiers.tier_settings import CACHED, PAGE_BYTES
from polyrec.planner.deployment.residency import Tables, cuts_within, rows_reached
from polyrec.planner.tier_times import BatchReads, probability_of_any


@dataclass(frozen=True, slots=True)
class OpenedCuts:
    """The cuts of a placement as a server opens it.

    prefix: rows of each table in memory, whole tables or prefixes. cache_bytes: size of the cache with pages
    and index; 0 without rows on disk. slots: rows that the cache holds. page_slots: pages read at a time.
    local_cuts: rows of each table before the remote ones; None if none are remote.
    """

    prefix: tuple[int, ...]
    local_cuts: tuple[int, ...] | None
    cache_bytes: int
    slots: int
    page_slots: int
    page_bytes: int


def opened_cuts(
    tables: Tables,
    memory: float,
    page_bytes: int = PAGE_BYTES,
    local_cuts: tuple[int, ...] | None = None,
) -> OpenedCuts:
    """Returns the exact cuts into which `memory` bytes are divided when tiers are opened.

    page_bytes: page size of the disk, a multiple of its sectors. local_cuts: rows of each table in memory or
    on disk. The result takes more than `memory` only if that is less than a page.
    """
    sizes = tuple(t.size for t in tables.accesses_by_rank)
    down = local_cuts or sizes
    inside = _inside(tables, down)
    uncached_cuts = cuts_within(inside, memory)
    partly = [i for i, (n, end) in enumerate(zip(uncached_cuts, down, strict=True)) if n < end]
    if not partly:
        return OpenedCuts(uncached_cuts, local_cuts, 0, 0, 1, page_bytes)
    whole = sum(
        n * b for i, (n, b) in enumerate(zip(uncached_cuts, tables.row_bytes, strict=True)) if i not in partly
    )
    shared = int(max(memory - whole, PAGE_BYTES))
    kept = max(min(int(shared * (1 - CACHED)), shared - PAGE_BYTES), 0)
    own = cuts_within(_select(inside, partly), kept)
    prefix = list(uncached_cuts)
    for i, n in zip(partly, own, strict=True):
        prefix[i] = n
    held = sum(n * tables.row_bytes[i] for i, n in zip(partly, own, strict=True))
    cache_bytes = shared - math.ceil(held)
    row_bytes = max(round(tables.mean_row_bytes), 1)
    page_bytes = -(-row_bytes // page_bytes) * page_bytes
    joining = sum(own)
    division = divide_cache(
        cache_bytes, row_bytes, page_bytes, sum(down[i] for i in partly), sum(prefix), joining
    )
    return OpenedCuts(tuple(prefix), local_cuts, cache_bytes, division.slots, division.pages, page_bytes)


def resident_cuts(cuts: tuple[int, ...], local_cuts: tuple[int, ...] | None = None) -> OpenedCuts:
    """Returns the cuts of a memory without a cache: an accelerator's, or the host's above a remote store."""
    return OpenedCuts(cuts, local_cuts, 0, 0, 1, PAGE_BYTES)


def cached_cuts(tables: Tables, opened: OpenedCuts, cached: float) -> tuple[int, ...]:
    """Returns the cuts of a static prefix that would answer as many lookups as prefix and cache together."""
    if not opened.slots:
        return opened.prefix
    inside = _inside(tables, opened.local_cuts or tuple(t.size for t in tables.accesses_by_rank))
    return rows_reached(inside, opened.prefix, opened.slots * cached * tables.mean_row_bytes)


def batch_reads(tables: Tables, opened: OpenedCuts, lookups: float, cached: float) -> BatchReads:
    """Returns the mean reads of a batch of `lookups` lookups, from the tables' accesses.

    Lookups are assumed independent, so a page whose rows have probability p is read with probability
    1 - exp(-lookups * p). cached: see TierCost.
    """
    total = tables.accesses or 1.0
    sizes = tuple(t.size for t in tables.accesses_by_rank)
    local_cuts = opened.local_cuts or sizes
    inside = _inside(tables, local_cuts)
    held = sum(n * b for n, b in zip(opened.prefix, tables.row_bytes, strict=True))
    near = sum(t.total for t in inside.accesses_by_rank)
    prefix = sum(t.before(n) for t, n in zip(tables.accesses_by_rank, opened.prefix, strict=True))
    below, remote = lookups * (near - prefix) / total, lookups * (total - near) / total
    if held >= inside.bytes:
        return BatchReads(lookups, remote=remote)
    cuts = cached_cuts(tables, opened, cached)
    reads = 0.0
    for ranked, cut, row_bytes in zip(inside.accesses_by_rank, cuts, tables.row_bytes, strict=True):
        rest = ranked.beyond(cut)
        a_page = max(opened.page_bytes // row_bytes, 1.0)
        reads += float(-np.expm1(-lookups / total * rest.accesses * a_page) @ rest.rows) / a_page
    return BatchReads(lookups, below, reads, rounds_of(reads, opened), remote)


def rounds_of(reads: float, opened: OpenedCuts) -> float:
    """Returns the number of rounds in which a batch reads `reads` pages, on average."""
    return probability_of_any(reads) * max(reads / opened.page_slots, 1.0)


def _inside(tables: Tables, local_cuts: tuple[int, ...]) -> Tables:
    """Returns the rows up to `local_cuts`."""
    if local_cuts == tuple(t.size for t in tables.accesses_by_rank):
        return tables
    ranked = tuple(t.until(n) for t, n in zip(tables.accesses_by_rank, local_cuts, strict=True))
    return Tables(tables.names, ranked, tables.row_bytes, tables.lookups)


def _select(tables: Tables, which: list[int]) -> Tables:
    return Tables(
        tuple(tables.names[i] for i in which),
        tuple(tables.accesses_by_rank[i] for i in which),
        tuple(tables.row_bytes[i] for i in which),
        tables.lookups,
    )
