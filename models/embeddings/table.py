"""The table representation: one fused weight, one gather, one bag a role (DLRM's embedding bags)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.batch import I64, Batch
from models.embeddings.lookups import Bags, FusedRows
from models.embeddings.stage import Vectors
from models.schema import Schema


class TableStage(nn.Module):
    """All tables in one weight, float32 [total rows, width], each table in popularity order.

    In training the gradient of the weight is sparse. Without gradients the gather writes into a
    buffer that is kept between calls, so what a call returns is valid until the next one.
    """

    def __init__(self, schema: Schema, table_rows: Mapping[str, int], weight: Tensor) -> None:
        super().__init__()
        self.rows = FusedRows(schema, table_rows)
        if weight.shape[0] != self.rows.total:
            raise ValueError(f"weight has {weight.shape[0]} rows, the tables {self.rows.total}")
        self.weight = nn.Parameter(weight, requires_grad=weight.dtype.is_floating_point)
        self.singles = len(schema.context.singles) + len(schema.candidate.singles)
        self.bags = len(schema.context.bags) + len(schema.candidate.bags)
        self._buffer = weight.new_empty(0)

    @staticmethod
    def initial(
        schema: Schema, table_rows: Mapping[str, int], width: int, seed: int, spread: float | None = None
    ) -> TableStage:
        """Rows uniform in +-spread, by default +-1/sqrt(rows) of each table, as in DLRM."""
        rows = FusedRows(schema, table_rows)
        generator = torch.Generator().manual_seed(seed)
        weight = torch.rand((rows.total, width), generator=generator).mul_(2).sub_(1)
        for table, size in zip(rows.tables, rows.sizes, strict=True):
            weight[rows.slice_of(table)] *= size**-0.5 if spread is None else spread
        return TableStage(schema, table_rows, weight)

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.weight]

    def forward(self, batch: Batch) -> Vectors:
        lookups = self.rows.lookups(batch)
        singles = self._gather(lookups.singles).view(batch.rows, self.singles, self.width)
        pooled = []
        if lookups.context_bags is not None:
            context = self._pool(lookups.context_bags)
            if lookups.context_row is not None:
                context = context[self._to_device(lookups.context_row)]
            pooled.append(context)
        if lookups.candidate_bags is not None:
            pooled.append(self._pool(lookups.candidate_bags))
        if not pooled:
            return Vectors(singles, singles.new_empty((batch.rows, 0, self.width)))
        return Vectors(singles, pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1))

    def _gather(self, rows: I64) -> Tensor:
        index = self._to_device(rows.reshape(-1))
        if torch.is_grad_enabled():
            return F.embedding(index, self.weight, sparse=True)
        if self._buffer.shape[0] < index.numel():
            # grown by doubling, so that a server stops allocating after its largest batches
            capacity = 1 << (int(index.numel()) - 1).bit_length() if index.numel() else 0
            self._buffer = self.weight.new_empty((capacity, self.width))
        out = self._buffer[: index.numel()]
        return torch.index_select(self.weight, 0, index, out=out)

    def _pool(self, bags: Bags) -> Tensor:
        """[block rows, features, D]: sums, scaled where the pooling is a mean."""
        pooled = F.embedding_bag(
            self._to_device(bags.rows),
            self.weight,
            self._to_device(bags.offsets),
            mode="sum",
            sparse=torch.is_grad_enabled(),
            include_last_offset=True,
        )
        scale = torch.from_numpy(bags.scale).to(self.weight.device)
        return pooled.view(*scale.shape, self.width) * scale.unsqueeze(-1)

    def _to_device(self, index: I64) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(index)).to(self.weight.device)
