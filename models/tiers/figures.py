"""Counters of tiers: look-ups, hits, bytes and time, by tier and by table.

A look-up that misses a tier is looked up in the next one, so the hit rate of a tier is its hits over its
look-ups, and the first tier's look-ups are the total.
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
    """Counters of one tier since it was opened. bytes: of rows returned (disk: of pages read)."""

    lookups: int
    hits: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """A snapshot.

    levels: by name of LEVELS. tables: table -> tier -> (look-ups, hits), for every tier that holds rows of
    it. replaced: rows taken from overlaid updates. fallbacks: rows replaced by the out-of-vocabulary
    row because the remote store did not answer.
    """

    levels: Mapping[str, Level]
    tables: Mapping[str, Mapping[str, tuple[int, int]]]
    batches: int
    replaced: int
    fallbacks: int
    prefetched_pages: int


class Counters:
    """Counts gathers. Written under the stack's lock; read at any time."""

    def __init__(self, layout: TierLayout, row_bytes: int, page_bytes: int) -> None:
        self._layout = layout
        self._row_bytes, self._page_bytes = row_bytes, page_bytes
        self.lookups: I64 = np.zeros(layout.tier.size, np.int64)
        self.missed: I64 = np.zeros(layout.tier.size, np.int64)
        self.seconds = dict.fromkeys(LEVELS, 0.0)
        self.batches = self.pages = self.replaced = self.fallbacks = self.prefetched = 0

    def lookup(self, ranges: I64) -> None:
        """Counts look-ups, given the range of each row."""
        self.lookups += np.bincount(ranges, minlength=self.lookups.size)

    def miss(self, ranges: I64) -> None:
        """Counts misses of the disk tier's cache or of the remote store, given the range of each row."""
        self.missed += np.bincount(ranges, minlength=self.missed.size)

    def snapshot(self) -> Figures:
        layout = self._layout
        lookups, missed = self.lookups.copy(), self.missed.copy()
        held = [int(lookups[layout.tier == t].sum()) for t in range(4)]
        lost = [int(missed[layout.tier == t].sum()) for t in range(4)]
        below = sum(held)
        levels = {}
        for name, tier in (("device", DEVICE), ("host", HOST), ("cache", DISK), ("remote", REMOTE)):
            hits = held[tier] - lost[tier]
            looked = held[tier] if tier in (DISK, REMOTE) else below
            levels[name] = Level(looked, hits, hits * self._row_bytes, self.seconds[name])
            if tier == DISK:
                levels["disk"] = Level(
                    lost[DISK], lost[DISK], self.pages * self._page_bytes, self.seconds["disk"]
                )
            below -= held[tier]
        tables: dict[str, dict[str, tuple[int, int]]] = {t: {} for t in layout.tables}
        for segment, (table, tier) in enumerate(
            zip(layout.table.tolist(), layout.tier.tolist(), strict=True)
        ):
            looked_up, misses = int(lookups[segment]), int(missed[segment])
            rows = tables[layout.tables[table]]
            name = ("device", "host", "cache", "remote")[tier]
            rows[name] = (looked_up, looked_up - misses)
            if tier == DISK:
                rows["disk"] = (misses, misses)
        ordered = {name: levels[name] for name in LEVELS}
        return Figures(ordered, tables, self.batches, self.replaced, self.fallbacks, self.prefetched)
