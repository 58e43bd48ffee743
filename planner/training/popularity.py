"""Models the popularity of rows, as expected lookups of each row of all tables per training row.

The rows of all tables are in a single order, most popular first, run-length encoded: two billion rows of a
Zipf distribution are about two thousand runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.popularity import Calibration
from polyrec.models.schema.schema import Schema
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.training.description import DescribedTable

EXACT_RANKS = 64
RATIO = 1.01
"""Ratio of the last ranks of successive runs, for ranks above EXACT_RANKS."""


@dataclass(frozen=True, slots=True)
class TableAccesses:
    """Lookups of one table's rows.

    by_rank: lookups per training row; those of a context count once per request. expanded: lookups of a
    training row including its context's, as the baseline exchanges them.
    """

    name: str
    by_rank: RankedAccesses
    expanded: float


@dataclass(frozen=True, eq=False)
class Popularity:
    """Rows of all tables in one order.

    names: names of the tables. accesses: float64 [runs], accesses of each row of a run per training row,
    never increasing. rows, table: int64 [runs]. expanded: float64 [tables], see TableAccesses.
    """

    names: tuple[str, ...]
    accesses: F64
    rows: I64
    table: I64
    expanded: F64

    @classmethod
    def from_tables(cls, tables: Sequence[TableAccesses]) -> Popularity:
        """Merges tables; equally popular rows are in the order of the tables."""
        accesses: F64 = np.concatenate([t.by_rank.accesses for t in tables])
        rows = np.concatenate([t.by_rank.rows for t in tables])
        table = np.repeat(np.arange(len(tables)), [t.by_rank.rows.size for t in tables])
        order = np.argsort(-accesses, kind="stable")
        expanded = np.array([t.expanded for t in tables])
        return cls(tuple(t.name for t in tables), accesses[order], rows[order], table[order], expanded)

    @cached_property
    def total_rows(self) -> int:
        """Rows of all tables."""
        return int(self.rows.sum())

    @cached_property
    def _ends(self) -> I64:
        return np.cumsum(self.rows)

    def between(self, first: int, last: int) -> I64:
        """Returns how many rows of each run have ranks in [first, last), int64 [runs]."""
        starts = self._ends - self.rows
        found: I64 = np.clip(np.minimum(self._ends, last) - np.maximum(starts, first), 0, self.rows)
        return found

    def by_table(self, rows: I64) -> dict[str, int]:
        """Sums rows of runs by table; tables without any are left out."""
        found = np.bincount(self.table, rows, minlength=len(self.names))
        return {name: round(n) for name, n in zip(self.names, found, strict=True) if n}

    def lookups(self, rows: I64) -> F64:
        """Returns the lookups per training row of some rows of the runs, float64 [tables]."""
        found = np.zeros(len(self.names))
        np.add.at(found, self.table, rows * self.accesses)
        return found

    def distinct(self, training_rows: float, rows: I64, factor: F64 | float = 1.0) -> float:
        """Returns the expected distinct rows, among some rows of the runs, that training rows look up.

        factor: multiplies the accesses of each run. Lookups are assumed independent (Poisson).
        """
        return float(rows @ -np.expm1(-self.accesses * factor * training_rows))


def zipf_accesses(rows: int, exponent: float, lookups: float) -> RankedAccesses:
    """Returns lookups proportional to r ** -exponent at rank r, `lookups` in total, averaged over runs."""
    exact = np.arange(1, min(rows, EXACT_RANKS) + 1)
    steps = int(np.log(max(rows / EXACT_RANKS, 1)) / np.log(RATIO)) + 2
    ends = np.unique(np.concatenate((exact, np.ceil(np.geomspace(exact[-1], rows, steps)).astype(np.int64))))
    ends[-1] = rows
    counts = np.diff(ends, prepend=0)
    low, high = ends - counts + 0.5, ends + 0.5
    # sums over runs, by the integral
    weights: F64 = np.log(high / low)
    if abs(exponent - 1) >= 1e-9:
        weights[:] = (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent)
    weights[: exact.size] = exact.astype(np.float64) ** -exponent
    return RankedAccesses(lookups * weights / weights.sum() / counts, counts)


def described_popularity(tables: Sequence[DescribedTable], rows_per_request: float) -> Popularity:
    """Returns the popularity of described tables."""
    found = []
    for table in tables:
        shared = rows_per_request if table.role == "context" else 1.0
        by_rank = zipf_accesses(table.rows, table.zipf, table.lookups / shared)
        found.append(TableAccesses(table.name, by_rank, table.lookups))
    return Popularity.from_tables(found)


def calibrated_popularity(calibration: Calibration, schema: Schema, rows_per_request: float) -> Popularity:
    """Returns the popularity of counted tables. A table of any context feature counts as context."""
    contexts = {t for t, features in schema.tables.items() if any(f.role == "context" for f in features)}
    found = []
    for name, vocabulary in calibration.vocabularies.items():
        by_rank = RankedAccesses.from_counts(vocabulary.counts).scaled(1 / calibration.sampled_rows)
        expanded = by_rank.total * (rows_per_request if name in contexts else 1.0)
        found.append(TableAccesses(name, by_rank, expanded))
    return Popularity.from_tables(found)
