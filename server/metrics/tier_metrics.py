"""Metrics of embedding tiers and of row updates, read from the tiers' own figures at every scrape.

Paths whose rows are all in one memory count their lookups themselves, in the same counters
(server/metrics/metrics.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from polyrec.models.tiers.figures import Figures
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.drift import DriftReport
from polyrec.models.tiers.updates.update_figures import UpdateFigures
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
            "Lookups of the rows of a table that belong to the tier, where rows are in tiers. Unlike by tier "
            "alone, rows of lower tiers do not count.",
            *("table", "tier"),
        )
        self._table_hits = registry.counter(
            "polyrec_embedding_table_hits", "Rows of a table found in the tier.", *("table", "tier")
        )
        self.fallbacks = registry.counter(
            "polyrec_embedding_fallbacks",
            "Rows replaced by the out-of-vocabulary row because the remote store failed.",
        ).only
        self._prefetched = registry.counter(
            "polyrec_embedding_prefetched_pages", "Pages of the disk tier read for waiting queries."
        )
        self._moved = registry.counter(
            "polyrec_embedding_moved_rows", "Rows moved as their popularity changed (drift)."
        )
        self._orders = registry.counter("polyrec_embedding_orders", "New row orders installed (drift).")
        self._tiered: list[StackMetrics] = []

    def set_sources(self, sources: Iterable[Callable[[], Figures]]) -> None:
        """Sets the tiers whose figures are read.

        Reads the previous tiers' figures once more; lookups of queries still in progress there are not
        counted.
        """
        self.refresh()
        by_tier = (self.lookups, self.hits, self._read_bytes, self._read_seconds)
        by_table = (self._table_lookups, self._table_hits)
        totals = (self.fallbacks, self._prefetched.only)
        self._tiered = [StackMetrics(source, by_tier, by_table, totals) for source in sources]

    def record_move(self, moves: DriftReport) -> None:
        """Records an attempt to reorder rows; called from a thread."""
        if moves.rows:
            self._orders.only.inc()
            self._moved.only.inc(moves.rows)

    def refresh(self) -> None:
        """Updates the metrics from the figures of all tiers."""
        for tiered in self._tiered:
            tiered.refresh()


class StackMetrics:
    """Adds the increase of one stack's figures since the last read to the counters of all stacks."""

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
        held = {tier for tiers in figures.tables.values() for tier in tiers}
        for tier, level in figures.levels.items():
            if tier not in held:  # such as the device's on a CPU, which every lookup would miss
                continue
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


class UpdateMetrics:
    """Instruments of updates, by path; paths that share rows count under the first of them."""

    def __init__(self, registry: Registry) -> None:
        self._updates = registry.counter(
            "polyrec_updates", "Updates of embedding rows, without repeated ones.", "path"
        )
        self._failed = registry.counter(
            "polyrec_updates_failed",
            "Updates that could not be stored, such as on a full disk (503).",
            "path",
        )
        self._rows = registry.counter("polyrec_update_rows", "Embedding rows set by updates.", "path")
        self._values = registry.counter(
            "polyrec_update_values",
            "Values changed by updates: added (they took a reserved row), retracted, or expired.",
            *("path", "change"),
        )
        self._age = registry.gauge(
            "polyrec_update_age_seconds",
            "Time since the last update of a path's rows; absent before the first.",
            "path",
        )
        self._lag = registry.gauge(
            "polyrec_update_lag_seconds",
            "Age of the last timed update's values (its field `time`) when the update was served.",
            "path",
        )
        self._kept = registry.gauge(
            "polyrec_updated_rows", "Rows that have been updated since the bundle was written.", "path"
        )
        self._reserved = registry.gauge(
            "polyrec_reserved_rows", "Reserved rows of a path, by state: taken or free.", *("path", "state")
        )
        self._watched: dict[str, Changes] = {}
        self._last: WeakKeyDictionary[Changes, UpdateFigures] = WeakKeyDictionary()

    def set_changes(self, changes: Mapping[str, Changes]) -> None:
        """Sets the updates whose figures are read, after reading the previous ones' a last time."""
        self.refresh()
        first: dict[int, str] = {}
        for path, one in changes.items():
            first.setdefault(id(one), path)
        self._watched = {path: changes[path] for path in first.values()}
        for gauge in (self._age, self._lag, self._kept, self._reserved):
            gauge.clear()  # removes paths and versions that are no longer served

    def refresh(self) -> None:
        """Reads the figures."""
        for path, changes in self._watched.items():
            # without their lock, which is held while a disk is written: a scrape would stop the event loop
            now, rows = replace(changes.figures), changes.rows
            taken, reserved = changes.taken, changes.reserved
            last = self._last.get(changes, UpdateFigures())
            self._last[changes] = now
            self._updates.labels(path).inc(now.updates - last.updates)
            self._failed.labels(path).inc(now.failed - last.failed)
            self._rows.labels(path).inc(now.rows - last.rows)
            for change in ("added", "retracted", "expired"):
                self._values.labels(path, change).inc(getattr(now, change) - getattr(last, change))
            if now.applied_at:
                self._age.labels(path).set(max(time.time() - now.applied_at, 0.0))
            if now.lag_s is not None:
                self._lag.labels(path).set(now.lag_s)
            self._kept.labels(path).set(rows)
            self._reserved.labels(path, "taken").set(taken)
            self._reserved.labels(path, "free").set(max(reserved - taken, 0))
