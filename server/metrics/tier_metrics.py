"""What tiers of rows did, as metrics: their own figures go in at every scrape, counters come out.

A path whose rows are all in one memory counts its look-ups itself, in the same counters
(server/metrics/metrics.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from polyrec.models.tiers.figures import Figures
from polyrec.models.tiers.updates.drift import Moves
from polyrec.server.metrics.instruments import Counter, Family, Registry


class TierMetrics:
    """The instruments of all tiers."""

    def __init__(self, registry: Registry) -> None:
        self.lookups = registry.counter(
            "polyrec_embedding_lookups", "Embedding rows looked up in a tier of memory.", "tier"
        )
        self.hits = registry.counter(
            "polyrec_embedding_hits", "Embedding rows that a tier had; the rest goes to the next one.", "tier"
        )
        self._read_bytes = registry.counter(
            "polyrec_embedding_read_bytes", "Bytes that a tier gave, where rows are placed in tiers.", "tier"
        )
        self._read_seconds = registry.counter(
            "polyrec_embedding_read_seconds",
            "Time spent on reading from a tier, where rows are in tiers.",
            "tier",
        )
        self._table_lookups = registry.counter(
            "polyrec_embedding_table_lookups",
            "Rows of a table looked up in a tier that holds some of its rows, where rows are in tiers.",
            *("table", "tier"),
        )
        self._table_hits = registry.counter(
            "polyrec_embedding_table_hits", "Rows of a table that the tier had.", *("table", "tier")
        )
        self._fallbacks = registry.counter(
            "polyrec_embedding_fallbacks",
            "Rows answered by the out-of-vocabulary row because the remote store did not give them.",
        )
        self._prefetched = registry.counter(
            "polyrec_embedding_prefetched_pages", "Pages of the disk tier read for queries that waited."
        )
        self._moved = registry.counter(
            "polyrec_embedding_moved_rows", "Rows that changed places as their popularity did (drift)."
        )
        self._orders = registry.counter(
            "polyrec_embedding_orders", "New orders of the rows that were installed (drift)."
        )
        self._tiered: list[Tiered] = []

    def watch(self, sources: Iterable[Callable[[], Figures]]) -> None:
        """Tiers whose figures are asked for from now on, in place of those before.

        Those are asked once more: what their last queries look up after this is not counted.
        """
        self.refresh()
        by_tier = (self.lookups, self.hits, self._read_bytes, self._read_seconds)
        by_table = (self._table_lookups, self._table_hits)
        totals = (self._fallbacks.only, self._prefetched.only)
        self._tiered = [Tiered(source, by_tier, by_table, totals) for source in sources]

    def moved(self, moves: Moves) -> None:
        """A new order of the rows was sought; told from a thread."""
        if moves.rows:
            self._orders.only.inc()
            self._moved.only.inc(moves.rows)

    def refresh(self) -> None:
        """Asks all."""
        for tiered in self._tiered:
            tiered.refresh()


class Tiered:
    """What one stack of tiers has done since it was last asked, added to the counters of all."""

    def __init__(
        self,
        source: Callable[[], Figures],
        by_tier: Sequence[Family[Counter]],
        by_table: Sequence[Family[Counter]],
        totals: Sequence[Counter],
    ) -> None:
        self._source = source
        self._by_tier = by_tier
        self._by_table = by_table
        self._totals = totals
        self._told: dict[tuple[str, ...], tuple[float, ...]] = {}

    def refresh(self) -> None:
        figures = self._source()
        for tier, level in figures.levels.items():
            counters = [family.labels(tier) for family in self._by_tier]
            self._tell((tier,), (level.lookups, level.hits, level.bytes, level.seconds), counters)
        for table, tiers in figures.tables.items():
            for tier, counts in tiers.items():
                self._tell((table, tier), counts, [family.labels(table, tier) for family in self._by_table])
        self._tell((), (figures.fallbacks, figures.prefetched_pages), self._totals)

    def _tell(self, key: tuple[str, ...], now: tuple[float, ...], counters: Sequence[Counter]) -> None:
        before = self._told.get(key, (0,) * len(now))
        for counter, new, old in zip(counters, now, before, strict=True):
            counter.inc(new - old)
        self._told[key] = now
