"""Implements the table representation: every row is stored in one fused weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.embeddings.pooling import assemble
from polyrec.models.embeddings.stage import PerBlock, Vectors
from polyrec.models.embeddings.store import FloatRows, QuantizedRows, open_rows
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.schema import Schema
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.shared.slab_reader import SlabReader

ROWS_AT_ONCE = 2**18


class TableStage(nn.Module):
    """All tables in one weight [total rows, width], each table in popularity order.

    fp32 rows are trainable with sparse gradients. Without gradients, the result of a call is valid until the
    next one, because the gather reuses its buffer.
    """

    def __init__(
        self,
        schema: Schema,
        table_rows: Mapping[str, int],
        weight: Tensor,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__()
        self.rows = FusedRows(schema, table_rows)
        if weight.shape[0] != self.rows.total:
            raise ValueError(f"weight has {weight.shape[0]} rows, but the tables have {self.rows.total}")
        self.store: FloatRows | QuantizedRows | TieredRows | SlabReader = open_rows(weight, precision)
        self.slots = PerBlock(len(schema.context.categorical), len(schema.candidate.categorical))

    @classmethod
    def over(cls, schema: Schema, table_rows: Mapping[str, int], store: TieredRows) -> TableStage:
        """Creates a stage over tiered rows instead of a weight."""
        stage = cls(schema, table_rows, torch.empty(sum(table_rows.values()), 0))
        del stage.store
        stage.store = store
        return stage

    @staticmethod
    def initial(
        schema: Schema,
        table_rows: Mapping[str, int],
        width: int,
        seed: int,
        spread: float | None = None,
    ) -> TableStage:
        """Creates a stage with rows drawn uniformly in +-spread, by default +-1/sqrt(rows), as in DLRM."""
        rows = FusedRows(schema, table_rows)
        weight = torch.empty((rows.total, width))
        start = 0
        for part in initial_rows(rows, width, seed, spread):
            weight[start : start + len(part)] = part
            start += len(part)
        return TableStage(schema, table_rows, weight)

    @property
    def width(self) -> int:
        return self.store.width

    @property
    def flops(self) -> PerBlock:
        return PerBlock(0, 0)

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.store.weight] if isinstance(self.store, FloatRows) else []

    def dense_parameters(self) -> list[nn.Parameter]:
        return []

    def forward(self, batch: Batch) -> Vectors:
        return assemble(self.rows.lookups(batch), self.store, self.width, self.store.device)


def initial_rows(rows: FusedRows, width: int, seed: int, spread: float | None = None) -> Iterator[Tensor]:
    """Yields the rows of `TableStage.initial` in order, at most ROWS_AT_ONCE at a time."""
    generator = torch.Generator().manual_seed(seed)
    for size in rows.sizes:
        for start in range(0, size, ROWS_AT_ONCE):
            part = torch.rand((min(ROWS_AT_ONCE, size - start), width), generator=generator)
            yield part.mul_(2).sub_(1).mul_(size**-0.5 if spread is None else spread)
