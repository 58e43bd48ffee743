"""The inverse keyed jagged form of a batch: per group of features, distinct rows and an index.

Features whose values repeat from row to row are stored, moved and computed once per distinct row of
their group; the index says which distinct row each row of the batch has. (RecD, MLSys'23, section 4.2:
the inverse keyed jagged tensor; a group is what RecD calls features deduplicated together.) Features in
no group stay as they are. The inverse is exact: the same bits in the same order.

    columns             user  a a a b b     price  3 5 4 3 9
    groups (user)       user  a b           index  0 0 0 1 1     price alone

Models execute the form with one group, the context (`polyrec.models.schema.batch.Batch`);
`to_context_batch` deduplicates the contexts of any batch. models/schema/grouping.py chooses the groups that
pay on given data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64, Batch, Block, take_bags
from polyrec.models.schema.distinct import Column, Jagged, distinct, rows_of, take
from polyrec.models.schema.encoder import interleave
from polyrec.models.schema.schema import ROLES, RoleLayout, Schema

Columns = Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class Group:
    """The distinct rows of some features. inverse: int64 [rows], the distinct row of each row."""

    columns: dict[str, Column]
    inverse: I64

    def plain(self) -> dict[str, Column]:
        """Returns the features of all rows, repeats included."""
        return {name: take(column, self.inverse) for name, column in self.columns.items()}


@dataclass(frozen=True, slots=True)
class InverseKeyed:
    """Rows of features, with repeats stored once. alone: features in no group, all rows."""

    groups: tuple[Group, ...]
    ungrouped: dict[str, Column]

    def plain(self) -> dict[str, Column]:
        """Returns all features of all rows: the input of `deduplicate`, bit for bit."""
        columns = dict(self.ungrouped)
        for group in self.groups:
            columns |= group.plain()
        return columns

    @property
    def nbytes(self) -> int:
        """Bytes of all values, offsets and indices."""
        columns = [*self.ungrouped.values(), *(c for g in self.groups for c in g.columns.values())]
        return sum(c.nbytes for c in columns) + sum(g.inverse.nbytes for g in self.groups)


def deduplicate(columns: Columns, groups: Sequence[Sequence[str]]) -> InverseKeyed:
    """Converts columns of equal length to their inverse keyed jagged form.

    groups: names of features that are deduplicated together; no name twice.
    """
    sizes = {rows_of(c) for c in columns.values()}
    if len(sizes) > 1:
        raise ValueError(f"columns of {sorted(sizes)} rows")
    names = [name for group in groups for name in group]
    if len(set(names)) < len(names) or not set(names) <= set(columns):
        raise ValueError(f"groups {groups} of the features {sorted(columns)}")
    found = []
    for group in groups:
        grouped = {name: columns[name] for name in group}
        first, inverse = distinct(list(grouped.values()), *sizes)
        found.append(Group({name: take(c, first) for name, c in grouped.items()}, inverse))
    return InverseKeyed(tuple(found), {n: c for n, c in columns.items() if n not in set(names)})


def columns_of(batch: Batch, schema: Schema) -> dict[str, Column]:
    """Splits a batch by feature, contexts repeated: dense float32 [rows], ranks int64 [rows], bags jagged."""
    plain = batch.exploded()
    columns: dict[str, Column] = {}
    for role in ROLES:
        layout = schema.layout(role)
        block = plain.context if role == "context" else plain.candidate
        columns |= {d.name: block.dense[:, i] for i, d in enumerate(layout.dense)}
        columns |= {f.name: block.ranks[:, i] for i, f in enumerate(layout.singles)}
        for i, f in enumerate(layout.bags):
            which = np.arange(block.rows) * len(layout.bags) + i
            columns[f.name] = Jagged(*take_bags(block.bag_values, block.bag_offsets, which))
    return columns


def batch_of(columns: Columns, schema: Schema) -> Batch:
    """The inverse of `columns_of`: a plain batch."""
    rows = rows_of(next(iter(columns.values())))
    return Batch(_block(columns, schema.context, rows), _block(columns, schema.candidate, rows))


def _block(columns: Columns, layout: RoleLayout, rows: int) -> Block:
    bags = [columns[f.name] for f in layout.bags]
    return Block(
        _stacked([columns[d.name] for d in layout.dense], rows, np.dtype(np.float32)),
        _stacked([columns[f.name] for f in layout.singles], rows, np.dtype(np.int64)),
        *interleave([(b.values, b.lengths) for b in bags if isinstance(b, Jagged)]),
    )


def _stacked(columns: Sequence[Column], rows: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """[rows, columns] of one type."""
    numbers = [c for c in columns if not isinstance(c, Jagged)]
    return np.stack(numbers, axis=1) if numbers else np.empty((rows, 0), dtype)


def to_context_batch(batch: Batch) -> Batch:
    """Returns the same rows with equal contexts stored once, in order of first occurrence.

    `Batch.exploded` is the inverse. Contexts count as equal if every bit of them is.
    """
    first, inverse = distinct(block_columns(batch.context), batch.context.rows)
    row = inverse if batch.context_row is None else inverse[batch.context_row]
    return Batch(batch.context.take(first), batch.candidate, row)


def block_columns(block: Block) -> list[Column]:
    """Returns columns that differ between two rows exactly where the block does."""
    columns: list[Column] = [block.dense, block.ranks]
    if block.bags:
        lengths = np.diff(block.bag_offsets).reshape(block.rows, block.bags)
        columns += [lengths, Jagged(block.bag_values, block.bag_offsets[:: block.bags])]
    return columns
