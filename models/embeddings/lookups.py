"""Maps the ranks of a batch to rows of the fused weight.

All tables are concatenated in a single weight, each in popularity order, so the row of a lookup is its
table's base plus its rank. A batch then needs one gather for all single-valued features of both roles and one
bag operation per role for the multi-valued ones, whatever the number of tables. A context is looked up once
for all its candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import F32, I64, Batch, Block
from polyrec.models.schema.schema import ROLES, Categorical, Role, Schema


@dataclass(frozen=True, slots=True)
class Bags:
    """The multi-valued lookups of one block.

    rows: int64 [total], rows of the fused weight. offsets: int64 [block rows * features + 1].
    scale: float32 [block rows, features], 1/length for mean pooling, else 1; None if all features are summed.
    """

    rows: I64
    offsets: I64
    scale: F32 | None
    features: int


@dataclass(frozen=True, slots=True)
class BlockLookups:
    """The lookups of one block. singles: int64 [block rows, single-valued features]."""

    singles: I64
    bags: Bags | None


@dataclass(frozen=True, slots=True)
class Lookups:
    """All lookups of a batch.

    singles: int64 [lookups], rows of the single-valued features, contexts first; the blocks' singles are
    views.
    """

    context: BlockLookups
    candidate: BlockLookups
    singles: I64

    def rows(self) -> I64:
        """Returns every row looked up: `singles`, then the bags of contexts, then those of candidates."""
        bags = [b.bags.rows for b in (self.context, self.candidate) if b.bags is not None]
        return np.concatenate((self.singles, *bags)) if bags else self.singles

    def in_order(self) -> I64:
        """Returns every row looked up, in the order in which `assemble` reads them: bags, then `singles`."""
        bags = [b.bags.rows for b in (self.context, self.candidate) if b.bags is not None]
        return np.concatenate((*bags, self.singles)) if bags else self.singles

    def at(self, rows: I64) -> Lookups:
        """Returns the lookups with their rows replaced, given in the order of `rows()`."""
        blocks = (self.context, self.candidate)
        sizes = [b.singles.size for b in blocks]
        sizes += [0 if b.bags is None else b.bags.rows.size for b in blocks]
        parts = np.split(rows, list(accumulate(sizes))[:-1])
        moved = [
            BlockLookups(
                parts[i].reshape(b.singles.shape),
                None if b.bags is None else replace(b.bags, rows=parts[2 + i]),
            )
            for i, b in enumerate(blocks)
        ]
        return Lookups(moved[0], moved[1], rows[: self.singles.size])


class FusedRows:
    """The position of every table in the fused weight."""

    def __init__(self, schema: Schema, table_rows: Mapping[str, int]) -> None:
        self.tables = tuple(schema.tables)
        self.sizes = tuple(table_rows[t] for t in self.tables)
        bases = np.concatenate(([0], np.cumsum(self.sizes)))
        self.base = {t: int(b) for t, b in zip(self.tables, bases, strict=False)}
        self.total = int(bases[-1])
        self._singles = {role: self._bases(schema.layout(role).singles) for role in ROLES}
        self._bags = {role: self._bases(schema.layout(role).bags) for role in ROLES}
        self._means = {role: means(schema.layout(role).bags) for role in ROLES}

    def _bases(self, features: tuple[Categorical, ...]) -> I64:
        return np.array([self.base[f.table_name] for f in features], np.int64)

    @property
    def has_bags(self) -> bool:
        """Whether any feature is multi-valued."""
        return any(bases.size for bases in self._bags.values())

    def bases(self, role: Role) -> I64:
        """First row of the table of each single-valued feature of a role."""
        return self._singles[role]

    def slice_of(self, table: str) -> slice:
        """Rows of one table."""
        base = self.base[table]
        return slice(base, base + self.sizes[self.tables.index(table)])

    def lookups(self, batch: Batch) -> Lookups:
        """Returns the rows of the fused weight that a batch looks up."""
        first = batch.context.ranks.size
        singles = np.empty(first + batch.candidate.ranks.size, np.int64)
        return Lookups(
            self._block("context", batch.context, singles[:first]),
            self._block("candidate", batch.candidate, singles[first:]),
            singles,
        )

    def _block(self, role: Role, block: Block, out: I64) -> BlockLookups:
        """Returns the lookups of a block; writes those of single-valued features to `out`."""
        singles = np.add(block.ranks, self._singles[role], out=out.reshape(block.ranks.shape))
        bases = self._bags[role]
        if not bases.size:
            return BlockLookups(singles, None)
        lengths = block.bag_offsets[1:] - block.bag_offsets[:-1]
        base = bases if block.rows == 1 else np.tile(bases, block.rows)
        rows = block.bag_values + np.repeat(base, lengths)
        mean = self._means[role]
        scale = None
        if mean is not None:
            scale = (1.0 / np.maximum(lengths, 1)).astype(np.float32).reshape(block.rows, bases.size)
            scale[:, ~mean] = 1.0
        return BlockLookups(singles, Bags(rows, block.bag_offsets, scale, bases.size))


def means(features: tuple[Categorical, ...]) -> NDArray[np.bool_] | None:
    """Returns a mask of the features pooled by mean, bool [features]; None if there are none."""
    flags = np.array([f.pooling == "mean" for f in features], bool)
    return flags if flags.any() else None
