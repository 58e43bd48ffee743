"""Counts lookups, hits, bytes and time by tier and by table.

A lookup that misses a tier continues in the next one. So a tier's hit rate is its hits over its lookups,
and the first tier's lookups are the total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.layout import DEVICE, DISK, HOST, REMOTE, TierLayout

LEVELS = ("device", "host", "cache", "disk", "remote")
"""Names of the tiers in figures; `cache` is the part of the disk tier that is cached in host memory."""


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
    """Counts gathers. Written under the stack's lock, read at any time."""

    def __init__(self, layout: TierLayout, row_bytes: int, page_bytes: int) -> None:
        self._layout = layout
        self._row_bytes, self._page_bytes = row_bytes, page_bytes
        self.lookups: I64 = np.zeros(layout.tier.size, np.int64)
        self.missed: I64 = np.zeros(layout.tier.size, np.int64)
        self.released: I64 = np.zeros(layout.tier.size, np.int64)
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
        layout = self._layout
        lookups, missed, released = self.lookups.copy(), self.missed.copy(), self.released.copy()
        # (lookups, hits) by tier of each range; rows that the host tier released are looked up in the cache
        through = np.where(layout.tier == HOST, released, lookups)
        by_level: dict[str, tuple[I64, I64]] = {}
        for name, tier in (("device", DEVICE), ("host", HOST), ("cache", DISK), ("remote", REMOTE)):
            own = layout.tier == tier
            if tier == DISK:
                own = own | (layout.tier == HOST)
                by_level["cache"] = through * own, (through - missed) * own
                by_level["disk"] = missed * own, missed * own
            else:
                lost = released if tier == HOST else missed
                by_level[name] = lookups * own, (lookups - lost) * own
        levels, reaches = {}, int(lookups.sum())
        for name in LEVELS:
            looked_up, hits = (int(n.sum()) for n in by_level[name])
            bytes_ = self.pages * self._page_bytes if name == "disk" else hits * self._row_bytes
            if name in ("device", "host"):
                levels[name] = Level(reaches, hits, bytes_, self.seconds[name])
                reaches -= hits
            else:
                levels[name] = Level(looked_up, hits, bytes_, self.seconds[name])
        tables: dict[str, dict[str, tuple[int, int]]] = {t: {} for t in layout.tables}
        for segment, (table, tier) in enumerate(
            zip(layout.table.tolist(), layout.tier.tolist(), strict=True)
        ):
            rows = tables[layout.tables[table]]
            if tier in (DEVICE, HOST, REMOTE):
                name = ("device", "host", "", "remote")[tier]
                rows[name] = tuple(int(n[segment]) for n in by_level[name])  # type: ignore[assignment]
            if tier == DISK or released[segment]:
                for name in ("cache", "disk"):
                    before = rows.get(name, (0, 0))
                    now = (int(n[segment]) for n in by_level[name])
                    rows[name] = tuple(a + b for a, b in zip(before, now, strict=True))  # type: ignore[assignment]
        return Figures(
            levels, tables, self.batches, self.replaced, self.fallbacks, self.prefetched, self.passes
        )
