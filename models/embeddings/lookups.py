"""Where each look-up lands: ranks of a batch -> rows of the one fused weight.

All tables stand one after another in a single weight, each in popularity order; a look-up is its
table's base plus its rank. So a batch needs one gather for all single-valued features and one bag
per role for the multi-valued ones, whatever the number of tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.batch import F32, I64, Batch, Block
from models.schema import Categorical, Layout, Schema


@dataclass(frozen=True, slots=True)
class Bags:
    """The multi-valued look-ups of one role, for rows of its own block.

    rows: int64 [total], rows of the fused weight. offsets: int64 [block rows * features + 1].
    scale: float32 [block rows, features], 1/length where the pooling is a mean, else 1.
    """

    rows: I64
    offsets: I64
    scale: F32


@dataclass(frozen=True, slots=True)
class Lookups:
    """All look-ups of a batch.

    singles: int64 [rows, single-valued features], contexts repeated.
    context_bags and candidate_bags: pooled per row of their block; None where a role has no bags.
    context_row: int64 [rows] or None, expands pooled context bags to the batch's rows.
    """

    singles: I64
    context_bags: Bags | None
    candidate_bags: Bags | None
    context_row: I64 | None

    def rows(self) -> I64:
        """Every row looked up: singles, then context bags, then candidate bags; int64 [look-ups]."""
        bags = [b.rows for b in (self.context_bags, self.candidate_bags) if b is not None]
        return np.concatenate([self.singles.reshape(-1), *bags])

    def at(self, rows: I64) -> Lookups:
        """The same look-ups at other rows, given in the order of `rows()`."""
        ends = [self.singles.size]
        bags = []
        for b in (self.context_bags, self.candidate_bags):
            size = 0 if b is None else b.rows.size
            own = rows[ends[-1] : ends[-1] + size]
            bags.append(None if b is None else Bags(own, b.offsets, b.scale))
            ends.append(ends[-1] + size)
        singles = rows[: self.singles.size].reshape(self.singles.shape)
        return Lookups(singles, bags[0], bags[1], self.context_row)


class FusedRows:
    """The address of every table inside the fused weight."""

    def __init__(self, schema: Schema, table_rows: Mapping[str, int]) -> None:
        self.tables = tuple(schema.tables)
        self.sizes = tuple(table_rows[t] for t in self.tables)
        bases = np.concatenate(([0], np.cumsum(self.sizes)))
        self.base = {t: int(b) for t, b in zip(self.tables, bases, strict=False)}
        self.total = int(bases[-1])
        self._singles = self._bases(schema.context.singles + schema.candidate.singles)
        self._bags = {
            role: (self._bases(layout.bags), self._means(layout), any_mean(layout))
            for role, layout in (("context", schema.context), ("candidate", schema.candidate))
        }

    def _bases(self, features: tuple[Categorical, ...]) -> I64:
        return np.array([self.base[f.table_name] for f in features], np.int64)

    @staticmethod
    def _means(layout: Layout) -> NDArray[np.bool_]:
        return np.array([f.pooling == "mean" for f in layout.bags], bool)

    def slice_of(self, table: str) -> slice:
        """The rows of one table."""
        base = self.base[table]
        return slice(base, base + self.sizes[self.tables.index(table)])

    def lookups(self, batch: Batch) -> Lookups:
        """The rows of the fused weight that a batch needs."""
        context = batch.context.ranks
        if batch.context_row is not None:
            context = context[batch.context_row]
        singles = np.concatenate((context, batch.candidate.ranks), axis=1)
        singles += self._singles
        return Lookups(
            singles,
            self._bag_rows("context", batch.context),
            self._bag_rows("candidate", batch.candidate),
            batch.context_row,
        )

    def _bag_rows(self, role: str, block: Block) -> Bags | None:
        bases, means, any_mean = self._bags[role]
        if not bases.size:
            return None
        lengths = np.diff(block.bag_offsets)
        rows = block.bag_values + np.repeat(np.tile(bases, block.rows), lengths)
        scale = np.ones((block.rows, bases.size), np.float32)
        if any_mean:
            lengths = lengths.reshape(block.rows, bases.size)
            scale[:] = np.where(means, 1.0 / np.maximum(lengths, 1), 1.0)
        return Bags(rows, block.bag_offsets, scale)


def any_mean(layout: Layout) -> bool:
    """Whether a role has a mean-pooled feature."""
    return any(f.pooling == "mean" for f in layout.bags)
