"""Counts lookups, hits, bytes and time by tier and by table.

A lookup that misses a tier continues in the next one. So a tier's hit rate is its hits over its lookups,
and the first tier's lookups are the total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.layout import DEVICE, DISK, HOST, REMOTE, TierLayout

LEVELS = ("device", "host", "cache", "disk", "remote")
"""Names of the tiers in figures; `cache` is the part of the disk tier that is cached in host memory."""
HELD_BY = {DEVICE: ("device",), HOST: ("host",), DISK: ("cache", "disk"), REMOTE: ("remote",)}
"""Names by tier of the layout."""


@dataclass(frozen=True, slots=True)
class Level:
    """Counters of one tier since it was opened. bytes: bytes of rows returned (disk: of pages read)."""

    lookups: int
    hits: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """A snapshot of the counters.

    levels: by name of LEVELS. tables: table -> tier -> (lookups, hits), for every tier that holds its rows.
    replaced: rows taken from overlaid updates.
    fallbacks: rows replaced by the out-of-vocabulary row because the remote store did not answer.
    prefetched_pages: pages read for queued batches.
    passes: number of times rows were acquired through the cache; several for a batch with more missing pages
    than slots.
    """

    levels: Mapping[str, Level]
    tables: Mapping[str, Mapping[str, tuple[int, int]]]
    batches: int
    replaced: int
    fallbacks: int
    prefetched_pages: int
    passes: int


class Counters:
    """Counts gathers. Written under the stack's lock, read at any time.

    lookups, missed, released: int64 [ranges], lookups, those that missed the disk tier's cache or the remote
    store, and those of rows that the host tier has released.
    """

    def __init__(self, layout: TierLayout, row_bytes: int, page_bytes: int) -> None:
        self._layout = layout
        self._row_bytes, self._page_bytes = row_bytes, page_bytes
        self.reset()

    def reset(self) -> None:
        """Counts from zero."""
        ranges = self._layout.tier.size
        self.lookups: I64 = np.zeros(ranges, np.int64)
        self.missed: I64 = np.zeros(ranges, np.int64)
        self.released: I64 = np.zeros(ranges, np.int64)
        self.seconds = dict.fromkeys(LEVELS, 0.0)
        self.batches = self.pages = self.replaced = self.fallbacks = self.prefetched = self.passes = 0

    def lookup(self, ranges: I64) -> None:
        """Counts lookups. ranges: the range of each row."""
        self.lookups += np.bincount(ranges, minlength=self.lookups.size)

    def below(self, ranges: I64) -> None:
        """Counts lookups that go through the disk tier's cache. ranges: the range of each row."""
        released = ranges[self._layout.tier.take(ranges) == HOST]
        if released.size:
            self.released += np.bincount(released, minlength=self.released.size)

    def miss(self, ranges: I64) -> None:
        """Counts misses of the disk tier's cache or of the remote store. ranges: the range of each row."""
        self.missed += np.bincount(ranges, minlength=self.missed.size)

    def snapshot(self) -> Figures:
        lookups, missed, released = self.lookups.copy(), self.missed.copy(), self.released.copy()
        by_range = _by_range(self._layout.tier, lookups, missed, released)
        levels, reaching = {}, int(lookups.sum())
        for name, (looked_up, hits) in by_range.items():
            found = int(hits.sum())
            read = self.pages * self._page_bytes if name == "disk" else found * self._row_bytes
            # every lookup goes through device and host memory, also of rows that were never there
            total = reaching if name in ("device", "host") else int(looked_up.sum())
            levels[name] = Level(total, found, read, self.seconds[name])
            reaching -= found
        return Figures(
            levels,
            _by_table(self._layout, by_range, released),
            self.batches,
            self.replaced,
            self.fallbacks,
            self.prefetched,
            self.passes,
        )


def _by_range(tier: NDArray[np.int8], lookups: I64, missed: I64, released: I64) -> dict[str, tuple[I64, I64]]:
    """Returns the lookups and hits of each range, int64 [ranges] each, by name of LEVELS.

    A tier counts only lookups of ranges that it holds. Rows that the host tier released are looked up in the
    cache. tier: of each range. lookups, missed, released: as in Counters.
    """
    on_device, on_host, remote = tier == DEVICE, tier == HOST, tier == REMOTE
    cached = (tier == DISK) | on_host
    through, missed_cache = np.where(on_host, released, lookups) * cached, missed * cached
    return {
        "device": (lookups * on_device, (lookups - missed) * on_device),
        "host": (lookups * on_host, (lookups - released) * on_host),
        "cache": (through, through - missed_cache),
        "disk": (missed_cache, missed_cache),
        "remote": (lookups * remote, (lookups - missed) * remote),
    }


def _by_table(
    layout: TierLayout, by_range: Mapping[str, tuple[I64, I64]], released: I64
) -> dict[str, dict[str, tuple[int, int]]]:
    """Sums the lookups and hits of each table, by name of each tier that holds some of its rows."""
    tables: dict[str, dict[str, tuple[int, int]]] = {t: {} for t in layout.tables}
    ranges = zip(layout.table.tolist(), layout.tier.tolist(), released.tolist(), strict=True)
    for i, (table, tier, was_released) in enumerate(ranges):
        own = tables[layout.tables[table]]
        for name in (*HELD_BY[tier], *(HELD_BY[DISK] if was_released else ())):
            lookups, hits = by_range[name]
            before = own.get(name, (0, 0))
            own[name] = before[0] + int(lookups[i]), before[1] + int(hits[i])
    return tables
