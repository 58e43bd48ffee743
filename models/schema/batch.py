"""Defines the batch that every model, runtime and lane works on.

A batch holds ranks in popularity order, not ids, and transformed dense values, not raw ones. It has two
blocks, one per role. Its rows are the candidate block's rows; `context_row` maps each to a row of the context
block, so a ranking request carries its context once (RecD's inverse keyed jagged tensor, with the role as the
group). In a plain batch both blocks have the same rows and `context_row` is None.

Plain and ranking requests can be merged in one batch. The plain rows then come first, counted by
`plain_rows`, because each request must be executed in its own form: both forms compute the same function, but
round differently below fp32 (models/dlrm/context_once.py), and a request's answer must not depend on what it
is merged with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def index_type(count: int) -> type[np.int32] | type[np.int64]:
    """Returns the smaller type that can hold 0 ... count - 1."""
    return np.int32 if count <= 2**31 else np.int64


@dataclass(frozen=True, slots=True)
class Block:
    """The features of one role.

    dense: float32 [rows, dense features], finite.
    ranks: int64 [rows, single-valued features], each in its own table's popularity order.
    bag_values: int64 [total], ranks of multi-valued features, row by row, feature by feature.
    bag_offsets: int64 [rows * bags + 1]; the bag of row r, feature b is
        bag_values[bag_offsets[r * bags + b] : bag_offsets[r * bags + b + 1]].
    """

    dense: F32
    ranks: I64
    bag_values: I64
    bag_offsets: I64

    def __post_init__(self) -> None:
        rows = self.dense.shape[0]
        if self.ranks.shape[0] != rows:
            raise ValueError(f"dense has {rows} rows, ranks {self.ranks.shape[0]}")
        if rows and (self.bag_offsets.size - 1) % rows:
            raise ValueError(f"{self.bag_offsets.size - 1} bags do not divide among {rows} rows")

    @property
    def rows(self) -> int:
        return int(self.dense.shape[0])

    @property
    def bags(self) -> int:
        """Number of multi-valued features (0 for an empty block)."""
        return (self.bag_offsets.size - 1) // self.rows if self.rows else 0

    def bag_columns(self) -> I64:
        """Returns the index of the multi-valued feature of each of bag_values, int64 [total]."""
        return np.repeat(np.tile(np.arange(self.bags), self.rows), np.diff(self.bag_offsets))

    def take(self, rows: I64) -> Block:
        """Selects rows, in the order given; repeats allowed."""
        bags = self.bags
        values, offsets = self.bag_values, self.bag_offsets
        if bags:
            which = (rows[:, None] * bags + np.arange(bags)).ravel()
            values, offsets = take_bags(values, offsets, which)
        else:
            offsets = np.zeros(1, np.int64)
        return Block(self.dense[rows], self.ranks[rows], values, offsets)

    @staticmethod
    def concat(blocks: Sequence[Block]) -> Block:
        """Concatenates the rows of all blocks, in order."""
        if len(blocks) == 1:
            return blocks[0]
        sizes = np.cumsum([0] + [b.bag_values.size for b in blocks])
        offsets = [b.bag_offsets[:-1] + s for b, s in zip(blocks, sizes, strict=False)]
        return Block(
            np.concatenate([b.dense for b in blocks]),
            np.concatenate([b.ranks for b in blocks]),
            np.concatenate([b.bag_values for b in blocks]),
            np.concatenate([*offsets, sizes[-1:]]),
        )


def take_bags(values: I64, offsets: I64, which: I64) -> tuple[I64, I64]:
    """Selects bags `which` (any order, repeats allowed) from a jagged array."""
    starts = offsets[which]
    lengths = offsets[which + 1] - starts
    new = np.zeros(which.size + 1, np.int64)
    np.cumsum(lengths, out=new[1:])
    index = np.arange(new[-1]) + np.repeat(starts - new[:-1], lengths)
    return values[index], new


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to predict: candidates, and the context that each belongs to.

    context_row: int64 [rows], row of the context block; None means that row r has context r.
    plain_rows: number of leading rows that come from plain batches, if there is a context_row; row r of them
    has context r.
    """

    context: Block
    candidate: Block
    context_row: I64 | None = None
    plain_rows: int = 0

    def __post_init__(self) -> None:
        if self.context_row is None and self.context.rows != self.candidate.rows:
            raise ValueError(
                f"{self.context.rows} context rows for {self.candidate.rows} candidates need context_row"
            )
        if self.context_row is not None and self.context_row.shape != (self.candidate.rows,):
            raise ValueError(f"context_row has shape {self.context_row.shape}")
        if not 0 <= self.plain_rows <= (0 if self.context_row is None else self.rows):
            raise ValueError(f"{self.plain_rows} of {self.rows} rows cannot be plain rows before others")

    @property
    def rows(self) -> int:
        return self.candidate.rows

    def exploded(self) -> Batch:
        """Repeats each context for its rows: the same rows as a plain batch, as a slow reference."""
        if self.context_row is None:
            return self
        return Batch(self.context.take(self.context_row), self.candidate)

    def take(self, rows: I64) -> Batch:
        """Selects rows with their contexts, int64 [n], ascending."""
        if self.context_row is None:
            return Batch(self.context.take(rows), self.candidate.take(rows))
        contexts, context_row = np.unique(self.context_row[rows], return_inverse=True)
        plain = int(rows.searchsorted(self.plain_rows))
        return Batch(self.context.take(contexts), self.candidate.take(rows), context_row, plain)

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Concatenates the rows of all batches, in order. Contexts stay shared, leading plain batches
        plain.
        """
        if len(batches) == 1:
            return batches[0]
        context = Block.concat([b.context for b in batches])
        candidate = Block.concat([b.candidate for b in batches])
        if all(b.context_row is None for b in batches):
            return Batch(context, candidate)
        rows, base, plain, leading = [], 0, 0, True
        for b in batches:
            if leading:
                plain += b.rows if b.context_row is None else b.plain_rows
                leading = b.context_row is None
            row = np.arange(b.rows) if b.context_row is None else b.context_row
            rows.append(row + base)
            base += b.context.rows
        return Batch(context, candidate, np.concatenate(rows), plain)
