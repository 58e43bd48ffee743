"""Implements computed representations: each table stores a prefix of its rows, DHE computes the others.

A cut per table is the number of its hottest rows that are stored. This covers three representations:

    dhe                     every cut is 0: all vectors are computed (KDD'21)
    select                  cuts are 0 or all rows: a table is stored or computed (MP-Rec)
    dhe, materialized       cuts are prefixes: MP-Rec's encoder cache; hot rows are read, the tail is computed

Each distinct row of a batch is read or computed once into a small matrix, and gathered and pooled from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.decoder import Activation, Decoders, DecodersByRows, hidden_widths
from polyrec.models.embeddings.hashing import VARIANCE, CodeTransform, UniversalHashes
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.embeddings.pooling import assemble
from polyrec.models.embeddings.stage import PerBlock, Stage, Vectors
from polyrec.models.embeddings.store import ComputedRows, FloatRows, QuantizedRows, as_index, open_rows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.files import Strict
from polyrec.models.schema.batch import I64, Batch
from polyrec.models.schema.schema import Schema
from polyrec.models.tiers.rows import HOST, TieredRows
from polyrec.models.tiers.shared.slab_reader import SlabReader


class Encoding(Strict):
    """The shape of a DHE: k hashes into [0, m), the decoder's hidden widths, the seed of the hashes.

    batch_norm: used in training only; bundles have it folded into the weights.
    by_rows: tables with few rows have narrower decoders, see `hidden_widths`.
    """

    k: Annotated[int, Field(ge=1, le=2**16)] = 1024
    m: Annotated[int, Field(ge=2, le=10**8)] = 1_000_000
    hidden: tuple[Annotated[int, Field(ge=1, le=2**16)], ...] = (128,)
    activation: Activation = "relu"
    batch_norm: bool = False
    by_rows: bool = False
    transform: CodeTransform = "uniform"
    seed: int = 0


Decode = Callable[[Tensor, I64], Tensor]
"""Maps codes [n, k], grouped by table, and the row count of each table to vectors [n, width]."""


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """The hottest rows of each table, which are stored rather than computed.

    cuts: number of stored rows by table, 0 for tables that are missing.
    rows: [sum of cuts, columns], table by table, in `precision`.
    """

    cuts: Mapping[str, int]
    rows: Tensor
    precision: Precision = "fp32"


class ComputedStage(nn.Module):
    """Stores a prefix of each table and decodes the tails.

    ids: integers [total rows], the stable id of each row in fused order. The id plus its table's base is
        hashed, so that tables share no codes and vectors do not depend on the popularity order.
    first_rows: rows of each table when the decoders were first trained (default: the present rows). Bases and
        widths derive from these, so that known ids keep their codes as tables grow. A new id may share its
        code with an id of another table, which has a different decoder.
    norms: whether decoders have batch norms, for training.
    distinct: whether a row that repeats within a batch is computed once (docs/context-once.md); False only in
        measurements.
    """

    distinct = True
    decode: Decode | None = None
    """Replaces `decoders` if set: a runtime's own implementation, in its own precision."""

    def __init__(
        self,
        schema: Schema,
        table_rows: Mapping[str, int],
        encoding: Encoding,
        width: int,
        prefix: StoredPrefix,
        ids: NDArray[np.signedinteger[Any]],
        norms: bool = False,
        first_rows: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.rows = FusedRows(schema, table_rows)
        self.encoding = encoding
        first = FusedRows(schema, first_rows or table_rows)
        self.cuts = np.array([prefix.cuts.get(t, 0) for t in self.rows.tables], np.int64)
        if (self.cuts > np.array(self.rows.sizes)).any() or (self.cuts < 0).any():
            raise ValueError("a cut is beyond its table's rows")
        stored = prefix.rows.shape[0]
        if stored != self.cuts.sum():
            raise ValueError(f"{stored} rows are stored, but the cuts add up to {self.cuts.sum()}")
        self._bases = np.array([self.rows.base[t] for t in self.rows.tables], np.int64)
        self._stored_bases = np.cumsum(self.cuts) - self.cuts
        self._ids = ids
        self._first_bases = np.array([first.base[t] for t in first.tables], np.int64)
        self._first_rows = dict(zip(first.tables, first.sizes, strict=True))
        self.store: FloatRows | QuantizedRows | TieredRows | SlabReader
        self.store = open_rows(prefix.rows, prefix.precision)
        reach = int((self._first_bases + self.rows.sizes).max(initial=0))
        self.hashes = UniversalHashes(
            encoding.k, encoding.m, first.total, encoding.seed, encoding.transform, reach
        )
        if max(self.rows.sizes, default=0) > self.hashes.p:
            raise ValueError(
                f"a table has more rows than its {self.hashes.p:,} hash codes: train from scratch"
            )
        computed = self.cuts < np.array(self.rows.sizes)
        self._decoder = np.cumsum(computed) - 1
        self.computed_tables = [t for t, c in zip(self.rows.tables, computed, strict=True) if c]
        self.decoders = self._make_decoders(width, norms)
        self.width = width
        self._names = [
            [f.table_name for f in layout.categorical] for layout in (schema.context, schema.candidate)
        ]
        self.slots = PerBlock(len(schema.context.categorical), len(schema.candidate.categorical))

    def _make_decoders(self, width: int, norms: bool) -> Decoders | DecodersByRows:
        shape, tables = self.encoding, self.computed_tables
        if not shape.by_rows:
            return Decoders(len(tables), shape.k, shape.hidden, width, shape.activation, norms)
        hidden = [hidden_widths(shape.hidden, self._first_rows[t]) for t in tables]
        return DecodersByRows(shape.k, hidden, width, shape.activation, norms)

    @property
    def flops(self) -> PerBlock:
        """Operations if nothing is stored or shared: one vector per feature whose table is computed."""
        of = dict(zip(self.computed_tables, self.decoders.flops, strict=True))
        return PerBlock(*(sum(of.get(t, 0) for t in names) for names in self._names))

    def initialize(self, generator: torch.Generator, deviations: Sequence[float]) -> None:
        """Initializes the decoders randomly, so that each table's vectors have its deviation."""
        by_table = dict(zip(self.rows.tables, deviations, strict=True))
        spread = [by_table[t] for t in self.computed_tables]
        self.decoders.initialize(generator, spread, VARIANCE[self.encoding.transform])

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.store.weight] if isinstance(self.store, FloatRows) else []

    def dense_parameters(self) -> list[nn.Parameter]:
        return list(self.decoders.parameters())

    def forward(self, batch: Batch) -> Vectors:
        lookups = self.rows.lookups(batch)
        if self.distinct:
            wanted, where = np.unique(lookups.rows(), return_inverse=True)
        else:
            looked_up = lookups.rows()
            order = np.argsort(looked_up, kind="stable")
            wanted, where = looked_up[order], np.empty_like(order)
            where[order] = np.arange(order.size)
        rows, place = self._vectors(wanted)
        return assemble(lookups.at(place[where]), ComputedRows(rows), self.width, rows.device)

    def vectors(self, rows: I64) -> Tensor:
        """Returns the vectors of rows, float32 [n, width]. rows: int64 [n], sorted, of the fused order."""
        found, order = self._vectors(rows)
        return found.index_select(0, as_index(order, found.device))

    def _vectors(self, rows: I64) -> tuple[Tensor, I64]:
        """Returns (vectors, where): the vector of rows[i] is vectors[where[i]]; stored ones come first."""
        table = np.searchsorted(self._bases, rows, side="right") - 1
        rank = rows - self._bases[table]
        hot = rank < self.cuts[table]
        where = np.where(hot, np.cumsum(hot), hot.sum() + np.cumsum(~hot)) - 1
        device = self.hashes.get_buffer("a").device
        parts = []
        if hot.any():
            on_host = isinstance(self.store, TieredRows)
            index = as_index((self._stored_bases[table] + rank)[hot], HOST if on_host else device)
            parts.append(self.store.gather(index))
        if not hot.all():
            ids = (self._first_bases[table] + self._ids[rows]) % self.hashes.p
            counts = np.bincount(self._decoder[table[~hot]], minlength=len(self.computed_tables))
            decode = self.decode or self.decoders
            parts.append(decode(self.hashes(as_index(ids[~hot], device)), counts))
        if not parts:
            return torch.empty((0, self.width), device=device), where
        return parts[0] if len(parts) == 1 else torch.cat(parts), where


def computed_part(stage: Stage) -> ComputedStage | None:
    """Returns the part of a stage that computes vectors; None if there is none."""
    part = stage.computed if isinstance(stage, HybridStage) else stage
    return part if isinstance(part, ComputedStage) and part.computed_tables else None


class HybridStage(nn.Module):
    """Gives a stored and a computed vector of each feature; both enter the interaction (MP-Rec)."""

    def __init__(self, table: TableStage, computed: ComputedStage) -> None:
        super().__init__()
        self.table = table
        self.computed = computed
        self.width = computed.width
        self.slots = PerBlock(2 * computed.slots.context, 2 * computed.slots.candidate)

    @property
    def flops(self) -> PerBlock:
        return self.computed.flops

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [*self.table.sparse_parameters(), *self.computed.sparse_parameters()]

    def dense_parameters(self) -> list[nn.Parameter]:
        return self.computed.dense_parameters()

    def forward(self, batch: Batch) -> Vectors:
        stored, computed = self.table(batch), self.computed(batch)
        return Vectors(
            torch.cat((stored.context, computed.context), dim=1),
            torch.cat((stored.candidate, computed.candidate), dim=1),
        )
