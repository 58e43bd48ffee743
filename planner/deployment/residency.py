"""Chooses which rows are resident: computes one cut per table of a bundle for a byte budget.

Tables are in popularity order, and a memory holds a prefix of each. A single threshold on accesses per byte
over all tables fills a budget optimally (fractional knapsack), so tables that are accessed more get more fast
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.planner.deployment.rank_accesses import RankedAccesses

RESIDENT = (0.8, 0.6, 0.45, 0.3, 0.2, 0.12, 0.07, 0.04, 0.02, 0.01)
"""Shares of a bundle's rows, in bytes, that are tried; spare memory is filled afterwards."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Runs of rows of one table with equal accesses per byte, in descending order: [runs] each.

    ends: bytes up to the end of each run.
    """

    density: F64
    table: I64
    rows: I64
    ends: F64


@dataclass(frozen=True)
class Tables:
    """The stored rows of a bundle: by table, its name, accesses and bytes per row.

    lookups: lookups in these tables for one row of a query.
    """

    names: tuple[str, ...]
    accesses_by_rank: tuple[RankedAccesses, ...]
    row_bytes: tuple[float, ...]
    lookups: float

    @cached_property
    def bytes(self) -> float:
        """Bytes of all rows."""
        return sum(t.size * b for t, b in zip(self.accesses_by_rank, self.row_bytes, strict=True))

    @cached_property
    def accesses(self) -> float:
        """Accesses of all rows."""
        return sum(t.total for t in self.accesses_by_rank)

    @cached_property
    def steps(self) -> Steps:
        """All runs in order of accesses per byte."""
        density = np.concatenate(
            [t.accesses / b for t, b in zip(self.accesses_by_rank, self.row_bytes, strict=True)]
        )
        table = np.repeat(np.arange(len(self.accesses_by_rank)), [t.rows.size for t in self.accesses_by_rank])
        order = np.argsort(-density, kind="stable")
        rows = np.concatenate([t.rows for t in self.accesses_by_rank])[order]
        ends = np.cumsum(rows * np.array(self.row_bytes)[table[order]])
        return Steps(density[order], table[order], rows, ends)

    @property
    def mean_row_bytes(self) -> float:
        """Mean bytes of a row, weighted by accesses."""
        if not self.accesses:
            return max(self.row_bytes, default=0.0)
        return float(np.average(self.row_bytes, weights=[t.total for t in self.accesses_by_rank]))


@dataclass(frozen=True, slots=True)
class Residency:
    """Number of resident rows of each table, their bytes, and the share of lookups that find them."""

    cuts: tuple[int, ...]
    bytes: float
    lookups: float


def cuts_within(tables: Tables, budget: float) -> tuple[int, ...]:
    """Returns how many rows of each table `budget` bytes hold, by accesses per byte over all tables.

    Of rows with equal accesses per byte, those of the first tables come first. The result is exact up to the
    last row, which must fit whole.
    """
    if budget >= tables.bytes or not tables.accesses_by_rank:
        return tuple(t.size for t in tables.accesses_by_rank)
    steps = tables.steps
    whole = int(np.searchsorted(steps.ends, budget, side="right"))
    cuts = np.bincount(steps.table[:whole], steps.rows[:whole], len(tables.accesses_by_rank)).astype(np.int64)
    left = budget - (float(steps.ends[whole - 1]) if whole else 0.0)
    for i in range(whole, steps.density.size):
        if steps.density[i] != steps.density[whole]:
            break
        size = tables.row_bytes[steps.table[i]]
        more = min(int(steps.rows[i]), int(left // size))
        cuts[steps.table[i]] += more
        left -= more * size
    return tuple(cuts.tolist())


def rows_reached(tables: Tables, cuts: tuple[int, ...], memory_bytes: float) -> tuple[int, ...]:
    """Returns the rank in each table that `memory_bytes` reach below a tier that holds `cuts`."""
    rest = Tables(
        tables.names,
        tuple(t.beyond(n) for t, n in zip(tables.accesses_by_rank, cuts, strict=True)),
        tables.row_bytes,
        tables.lookups,
    )
    return tuple(n + more for n, more in zip(cuts, cuts_within(rest, memory_bytes), strict=True))


def residency(tables: Tables, cuts: tuple[int, ...]) -> Residency:
    """Returns the bytes and hit share of cuts; the hit share is 1 if there are no accesses."""
    resident = sum(n * b for n, b in zip(cuts, tables.row_bytes, strict=True))
    inside = sum(t.before(n) for t, n in zip(tables.accesses_by_rank, cuts, strict=True))
    return Residency(cuts, resident, inside / tables.accesses if tables.accesses else 1.0)


def residencies(tables: Tables | None) -> tuple[Residency, ...]:
    """Returns the residencies to try; none if the access counts are unknown."""
    if tables is None or not tables.lookups:
        return ()
    return tuple(residency(tables, cuts_within(tables, share * tables.bytes)) for share in RESIDENT)
