"""Metrics of embedding tiers, updated from the tiers' own figures at every scrape.

A path whose rows are all in one memory counts its look-ups itself, in the same counters
(server/metrics/metrics.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from polyrec.models.tiers.figures import Figures
from polyrec.models.tiers.updates.drift import DriftReport
from polyrec.server.metrics.instruments import Counter, Family, Registry


class TierMetrics:
    """The instruments of all tiers."""

    def __init__(self, registry: Registry) -> None:
        self.lookups = registry.counter(
            "polyrec_embedding_lookups", "Embedding rows looked up in a tier of memory.", "tier"
        )
        self.hits = registry.counter(
            "polyrec_embedding_hits",
            "Embedding rows found in a tier; the others are looked up in the next one.",
            "tier",
        )
        self._read_bytes = registry.counter(
            "polyrec_embedding_read_bytes", "Bytes read from a tier, where rows are in tiers.", "tier"
        )
        self._read_seconds = registry.counter(
            "polyrec_embedding_read_seconds",
            "Time spent reading from a tier, where rows are in tiers.",
            "tier",
        )
        self._table_lookups = registry.counter(
            "polyrec_embedding_table_lookups",
            "Rows of a table looked up in a tier that holds some of its rows, where rows are in tiers.",
            *("table", "tier"),
        )
        self._table_hits = registry.counter(
            "polyrec_embedding_table_hits", "Rows of a table found in the tier.", *("table", "tier")
        )
        self._fallbacks = registry.counter(
            "polyrec_embedding_fallbacks",
            "Rows replaced by the out-of-vocabulary row because the remote store failed.",
        )
        self._prefetched = registry.counter(
            "polyrec_embedding_prefetched_pages", "Pages of the disk tier read for waiting queries."
        )
        self._moved = registry.counter(
            "polyrec_embedding_moved_rows", "Rows moved as their popularity changed (drift)."
        )
        self._orders = registry.counter("polyrec_embedding_orders", "New row orders installed (drift).")
        self._tiered: list[StackMetrics] = []

    def watch(self, sources: Iterable[Callable[[], Figures]]) -> None:
        """Sets the tiers whose figures are read.

        The figures of the previous ones are read once more; look-ups of their last queries are not counted.
        """
        self.refresh()
        by_tier = (self.lookups, self.hits, self._read_bytes, self._read_seconds)
        by_table = (self._table_lookups, self._table_hits)
        totals = (self._fallbacks.only, self._prefetched.only)
        self._tiered = [StackMetrics(source, by_tier, by_table, totals) for source in sources]

    def moved(self, moves: DriftReport) -> None:
        """Records an attempt to reorder rows; called from a thread."""
        if moves.rows:
            self._orders.only.inc()
            self._moved.only.inc(moves.rows)

    def refresh(self) -> None:
        """Reads the figures of all tiers."""
        for tiered in self._tiered:
            tiered.refresh()


class StackMetrics:
    """Adds the figures of one stack, since they were last read, to the counters of all stacks."""

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
        self._last: dict[tuple[str, ...], tuple[float, ...]] = {}

    def refresh(self) -> None:
        figures = self._source()
        for tier, level in figures.levels.items():
            counters = [family.labels(tier) for family in self._by_tier]
            self._add((tier,), (level.lookups, level.hits, level.bytes, level.seconds), counters)
        for table, tiers in figures.tables.items():
            for tier, counts in tiers.items():
                self._add((table, tier), counts, [family.labels(table, tier) for family in self._by_table])
        self._add((), (figures.fallbacks, figures.prefetched_pages), self._totals)

    def _add(self, key: tuple[str, ...], now: tuple[float, ...], counters: Sequence[Counter]) -> None:
        before = self._last.get(key, (0,) * len(now))
        for counter, new, old in zip(counters, now, before, strict=True):
            counter.inc(new - old)
        self._last[key] = now
