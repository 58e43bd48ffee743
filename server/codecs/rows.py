"""The rows of a query after parsing and validation, but before encoding.

`Columns` come from JSON, `Tensors` and `RankedTensors` from the Open Inference Protocol. server/dispatch
merges the rows of a batch and encodes them once, with the encoder of the chosen path. Encoding is late
because ranks are internal to a bundle, and because its few dozen array operations cost about the same for one
row as for a thousand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from typing import Any, Protocol, Self

import numpy as np

from polyrec.models.schema.batch import F32, I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.request.pending import RequestValues, computed, joined, part_of
from polyrec.models.schema.schema import ROLES

Column = Sequence[Any] | None
Bags = Mapping[str, tuple[I64, I64]]
"""Multi-valued feature -> (ids int64 [total], ids per row int64 [rows])."""


class Rows(Protocol):
    """The rows of a query. Rows of the same class can be merged if all or none of them are plain."""

    @property
    def rows(self) -> int: ...

    @property
    def plain(self) -> bool:
        """Whether each row has its own context."""
        ...

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Concatenates the rows of all parts."""
        ...

    def encode(self, encoder: Encoder) -> Batch:
        """Encodes the rows as a batch. Raises FeatureError."""
        ...

    def part(self, first: int, rows: int) -> Self:
        """Returns rows [first, first + rows), for a query that is split over lanes."""
        ...


@dataclass(slots=True)
class Columns:
    """Raw values by feature, with None for missing values.

    names: names of the context features and of the candidate features.
    context, candidate: their columns in the same order.
    context_row: int64 [rows], the context of each row; None if each row has its own.
    request_features: float64 [rows, features], or still to be computed; None if the schema has none.
    group: the request of each row if the client sent it; for the prediction log.
    """

    names: tuple[tuple[str, ...], tuple[str, ...]]
    context: Sequence[Column]
    candidate: Sequence[Column]
    rows: int
    context_rows: int
    context_row: I64 | None = None
    request_features: RequestValues | None = None
    group: Column = None

    @property
    def plain(self) -> bool:
        return self.context_row is None

    @classmethod
    def merged(cls, parts: Sequence[Columns]) -> Columns:
        if len(parts) == 1:
            return parts[0]
        rows = [p.rows for p in parts]
        context_rows = [p.context_rows for p in parts]
        context_rows_of_parts = [p.context_row for p in parts if p.context_row is not None]
        context_row = None
        if context_rows_of_parts:
            context_row = np.concatenate(context_rows_of_parts)
            context_row += np.repeat(np.cumsum([0, *context_rows[:-1]]), rows)
        return Columns(
            parts[0].names,
            [_joined(columns, context_rows) for columns in zip(*(p.context for p in parts), strict=True)],
            [_joined(columns, rows) for columns in zip(*(p.candidate for p in parts), strict=True)],
            sum(rows),
            sum(context_rows),
            context_row,
            joined([p.request_features for p in parts]),
        )

    def encode(self, encoder: Encoder) -> Batch:
        context, candidate = self.names
        return Batch(
            encoder.block("context", dict(zip(context, self.context, strict=True)), self.context_rows),
            encoder.block(
                "candidate",
                dict(zip(candidate, self.candidate, strict=True)),
                self.rows,
                computed(self.request_features),
            ),
            self.context_row,
        )

    def part(self, first: int, rows: int) -> Columns:
        end = first + rows
        candidate = [None if c is None else c[first:end] for c in self.candidate]
        request_features = part_of(self.request_features, first, end)
        if self.context_row is not None:
            row = self.context_row[first:end]
            return Columns(
                self.names, self.context, candidate, rows, self.context_rows, row, request_features
            )
        context = [None if c is None else c[first:end] for c in self.context]
        return Columns(self.names, context, candidate, rows, rows, None, request_features)


def _joined(columns: Sequence[Column], rows: Sequence[int]) -> Column:
    """Concatenates the columns of one feature."""
    if None not in columns:
        return list(chain.from_iterable(columns))  # type: ignore[arg-type]
    if all(column is None for column in columns):
        return None
    filled = (repeat(None, n) if c is None else c for c, n in zip(columns, rows, strict=True))
    return list(chain.from_iterable(filled))


@dataclass(slots=True)
class Tensors:
    """Stable ids of every feature, for `Encoder.from_ids`. Lengths are validated.

    request_features: see `Columns`.
    request_lengths: consecutive rows of each request, None if all are of one; for the prediction log.
    """

    dense: F32
    sparse: I64
    bags: Bags
    rows: int
    request_features: RequestValues | None = None
    request_lengths: I64 | None = None
    plain = True

    @classmethod
    def merged(cls, parts: Sequence[Tensors]) -> Tensors:
        if len(parts) == 1:
            return parts[0]
        return Tensors(
            np.concatenate([p.dense for p in parts]),
            np.concatenate([p.sparse for p in parts]),
            _joined_bags([p.bags for p in parts]),
            sum(p.rows for p in parts),
            joined([p.request_features for p in parts]),
        )

    def encode(self, encoder: Encoder) -> Batch:
        return encoder.from_ids(self.dense, self.sparse, self.bags, computed(self.request_features))

    def part(self, first: int, rows: int) -> Tensors:
        end = first + rows
        return Tensors(
            self.dense[first:end],
            self.sparse[first:end],
            _part_of_bags(self.bags, first, end),
            rows,
            part_of(self.request_features, first, end),
        )


@dataclass(slots=True)
class RoleTensors:
    """Stable ids of one role, for `Encoder.ids_block`. bags: multi-valued features of that role."""

    dense: F32
    sparse: I64
    bags: Bags

    @property
    def rows(self) -> int:
        return len(self.sparse)

    def part(self, first: int, rows: int) -> RoleTensors:
        end = first + rows
        return RoleTensors(
            self.dense[first:end], self.sparse[first:end], _part_of_bags(self.bags, first, end)
        )

    @staticmethod
    def merged(parts: Sequence[RoleTensors]) -> RoleTensors:
        return RoleTensors(
            np.concatenate([p.dense for p in parts]),
            np.concatenate([p.sparse for p in parts]),
            _joined_bags([p.bags for p in parts]),
        )


@dataclass(slots=True)
class RankedTensors:
    """Stable ids of contexts and their candidates.

    context_row: int64 [rows], see `Batch`.
    request_features: see `Columns`.
    request_lengths: see `Tensors`.
    """

    context: RoleTensors
    candidate: RoleTensors
    context_row: I64
    request_features: RequestValues | None = None
    request_lengths: I64 | None = None
    plain = False

    @property
    def rows(self) -> int:
        return self.candidate.rows

    @classmethod
    def merged(cls, parts: Sequence[RankedTensors]) -> RankedTensors:
        if len(parts) == 1:
            return parts[0]
        context_row = np.concatenate([p.context_row for p in parts])
        first = np.cumsum([0, *(p.context.rows for p in parts[:-1])])
        context_row += np.repeat(first, [p.rows for p in parts])
        return RankedTensors(
            RoleTensors.merged([p.context for p in parts]),
            RoleTensors.merged([p.candidate for p in parts]),
            context_row,
            joined([p.request_features for p in parts]),
        )

    def encode(self, encoder: Encoder) -> Batch:
        request = computed(self.request_features)
        context, candidate = (
            encoder.ids_block(role, tensors.dense, tensors.sparse, tensors.bags, request)
            for role, tensors in zip(ROLES, (self.context, self.candidate), strict=True)
        )
        return Batch(context, candidate, self.context_row)

    def part(self, first: int, rows: int) -> RankedTensors:
        row = self.context_row[first : first + rows]
        request_features = part_of(self.request_features, first, first + rows)
        return RankedTensors(self.context, self.candidate.part(first, rows), row, request_features)


def _part_of_bags(bags: Bags, first: int, end: int) -> Bags:
    parts = {}
    for name, (ids, lengths) in bags.items():
        skipped = int(lengths[:first].sum())
        parts[name] = ids[skipped : skipped + int(lengths[first:end].sum())], lengths[first:end]
    return parts


def _joined_bags(parts: Sequence[Bags]) -> Bags:
    return {
        name: (
            np.concatenate([bags[name][0] for bags in parts]),
            np.concatenate([bags[name][1] for bags in parts]),
        )
        for name in parts[0]
    }


def encode(parts: Sequence[Rows], encoder: Encoder) -> Batch:
    """Encodes the rows of all parts as one batch, in order.

    Plain parts must come first to be executed as plain rows. Raises FeatureError if any row is invalid.
    """
    if len(parts) == 1:
        return parts[0].encode(encoder)
    runs = [list(run) for _, run in groupby(parts, lambda part: (type(part), part.plain))]
    return Batch.concat([run[0].merged(run).encode(encoder) for run in runs])
