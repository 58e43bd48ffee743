"""Which rows are resident: a bundle's tables and a budget in bytes in, a cut a table out.

Tables are in popularity order and a memory holds a prefix of each. One threshold on accesses per byte,
taken over all tables, fills a budget optimally (fractional knapsack: DESIGN), so a table that is read
more gets more of the fast memory by itself. What lies beyond the cut is read from the next tier, and
each such look-up costs time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from models.batch import I64
from models.bundle import VOCABULARY, Manifest, read_manifest
from models.errors import BundleError
from planner.profile import Memory, ProfileError

F64 = NDArray[np.float64]

PAGE = 4096
"""Bytes that a disk gives at least: a row is read with the page it lies on."""
P99 = 2.326
"""Standard deviations to the 99th percentile of a normal distribution."""


@dataclass(frozen=True)
class Tables:
    """The stored rows of a bundle. For each table: its name, accesses by rank (int64 [rows], never
    increasing) and bytes of a row. lookups: of these tables, for one row of a query."""

    names: tuple[str, ...]
    counts: tuple[I64, ...] = field(repr=False)
    row_bytes: tuple[float, ...]
    lookups: float

    @property
    def bytes(self) -> float:
        """Of all rows."""
        return sum(c.size * b for c, b in zip(self.counts, self.row_bytes, strict=True))

    @cached_property
    def densities(self) -> tuple[F64, ...]:
        """Accesses per byte by rank, of each table."""
        return tuple(c / b for c, b in zip(self.counts, self.row_bytes, strict=True))

    @cached_property
    def thresholds(self) -> F64:
        """All densities, each once, ascending."""
        # counts never increase, so a table's different ones are found without sorting its rows
        different = [d[np.append(True, d[1:] != d[:-1])] for d in self.densities]
        return np.unique(np.concatenate(different)) if different else np.empty(0)

    @cached_property
    def covered_by(self) -> tuple[I64, ...]:
        """Accesses of the rows before each rank, int64 [rows + 1], of each table."""
        return tuple(np.append(0, np.cumsum(c)) for c in self.counts)

    @property
    def mean_row_bytes(self) -> float:
        """Of a row that is looked up."""
        accesses = [float(c.sum()) for c in self.counts]
        if not sum(accesses):
            return max(self.row_bytes, default=0.0)
        return float(np.average(self.row_bytes, weights=accesses))


@dataclass(frozen=True, slots=True)
class Tier:
    """What one look-up beyond the cut costs: `latency_s`, and its bytes (at least `block`) over
    `bandwidth` bytes/s, one look-up after the other."""

    name: str
    latency_s: float
    bandwidth: float
    block: int = 1

    def seconds(self, row_bytes: float) -> float:
        """Of one look-up."""
        return self.latency_s + max(row_bytes, self.block) / self.bandwidth


@dataclass(frozen=True, slots=True)
class Missing:
    """Look-ups beyond the cut: `per_row` of a query's row on average, `seconds` each."""

    per_row: float
    seconds: float

    def median(self, rows: float) -> float:
        """Seconds that a batch of `rows` rows waits for them."""
        return rows * self.per_row * self.seconds

    def tail(self, rows: float) -> float:
        """The same at the 99th percentile: look-ups fall beyond the cut independently of one another."""
        mean = rows * self.per_row
        return (mean + P99 * math.sqrt(mean)) * self.seconds


NOTHING_MISSING = Missing(0.0, 0.0)


def read_tables(folder: Path, memory: Memory) -> Tables:
    """The rows that `memory` says a path of the bundle at `folder` stores, with the bundle's access counts.

    Raises BundleError: no such bundle. ProfileError: it is not the one that was profiled.
    """
    manifest = read_manifest(folder)
    try:
        with safe_open(folder / VOCABULARY, "np") as f:
            accesses = {t: f.get_tensor(f"{t}.counts").astype(np.int64) for t in manifest.schema_.tables}
    except (OSError, SafetensorError) as e:
        raise BundleError(f"bundle '{folder}': {VOCABULARY} cannot be read: {e}") from None
    try:
        return stored_tables(manifest, accesses, memory)
    except ValueError as e:
        raise ProfileError(
            f"bundle '{folder}' is not the one that was profiled: {e}; profile it again"
        ) from None


def stored_tables(manifest: Manifest, accesses: Mapping[str, I64], memory: Memory) -> Tables:
    """accesses: by table, in rank order. Raises ValueError if `memory` has rows that are not stored.

    A table of single-valued features is looked up once a row for each, which tells how many sampled
    rows the counts are of, and so how often a row looks up a bag.
    """
    schema, representation = manifest.schema_, manifest.representation
    counts: dict[str, I64] = {}
    sampled = 0.0
    for table, features in schema.tables.items():
        all_rows = accesses[table]
        if not any(f.multi for f in features):
            sampled = max(sampled, float(all_rows.sum()) / len(features))
        stored = all_rows.size
        if representation.kind in ("dhe", "select"):
            stored = representation.cuts.get(table, 0)
        if stored and memory.tables.get(table):
            counts[table] = all_rows[:stored]
    for table, size in memory.tables.items():
        if size and table not in counts:
            raise ValueError(f"it stores no rows of table '{table}'")
    row_bytes = tuple(memory.tables[t] / c.size for t, c in counts.items())
    # without single-valued features every table counts as looked up once a row
    sampled = sampled or max((float(c.sum()) for c in accesses.values()), default=1.0)
    lookups = sum(float(c.sum()) for c in counts.values()) / max(sampled, 1.0)
    return Tables(tuple(counts), tuple(counts.values()), row_bytes, lookups)


def cuts_within(tables: Tables, budget: float) -> tuple[int, ...]:
    """Rows of each table that `budget` bytes hold: those with most accesses per byte, over all tables.

    Rows of equal density are taken table by table. Exact up to the last row, which must fit whole.
    """
    if budget >= tables.bytes:
        return tuple(c.size for c in tables.counts)
    densities, known = tables.densities, tables.thresholds

    def cuts_at(threshold: float) -> list[int]:
        # counts never increase: seen from the coldest row they ascend
        return [int(d.size - np.searchsorted(d[::-1], threshold, side="left")) for d in densities]

    low, high = 0, known.size
    while low < high:
        middle = (low + high) // 2
        if resident_bytes(tables, cuts_at(known[middle])) <= budget:
            high = middle
        else:
            low = middle + 1
    cuts = cuts_at(known[low]) if low < known.size else [0] * len(densities)
    left = budget - resident_bytes(tables, cuts)
    ties = cuts_at(known[low - 1]) if low else cuts
    for i, (cut, most) in enumerate(zip(cuts, ties, strict=True)):
        more = min(most - cut, int(left // tables.row_bytes[i]))
        cuts[i] += more
        left -= more * tables.row_bytes[i]
    return tuple(cuts)


def resident_bytes(tables: Tables, cuts: Sequence[int]) -> float:
    """Of the rows within the cuts."""
    return sum(n * b for n, b in zip(cuts, tables.row_bytes, strict=True))


def covered(tables: Tables, cuts: Sequence[int]) -> float:
    """Share of the look-ups that find their row within the cuts; 1 where nothing is looked up."""
    total = sum(int(c[-1]) for c in tables.covered_by)
    inside = sum(int(c[n]) for c, n in zip(tables.covered_by, cuts, strict=True))
    return inside / total if total else 1.0


def missing(tables: Tables, share: float, tier: Tier) -> Missing:
    """What look-ups beyond the cuts cost, where `share` of them is covered."""
    return Missing(tables.lookups * (1.0 - share), tier.seconds(tables.mean_row_bytes))
