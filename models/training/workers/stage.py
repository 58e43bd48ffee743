"""Implements the table representation on one of several workers, from rows fetched for each batch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from polyrec.models.embeddings.lookups import BlockLookups
from polyrec.models.embeddings.pooling import assemble
from polyrec.models.embeddings.stage import PerBlock, Vectors
from polyrec.models.embeddings.store import ComputedRows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.schema.batch import Batch
from polyrec.models.training.workers.group import WorkerGroup
from polyrec.models.training.workers.row_exchange import Fetched, WorkerRows


class ShardedStage(nn.Module):
    """A TableStage whose rows are sharded over all workers; every worker must call it equally often.

    hot: bool [rows of the fused weight], the replicated rows. room: see WorkerRows.
    local: whether all lookups of the next batches are of replicated rows.
    pending: fetched since the last `push`. ahead: fetched for the next call.
    """

    def __init__(
        self,
        table: TableStage,
        group: WorkerGroup,
        hot: NDArray[np.bool_] | None,
        distinct: bool,
        max_hot_rows: int = 0,
    ) -> None:
        super().__init__()
        self.table_rows, self.slots, self.width = table.rows, table.slots, table.width
        (weight,) = table.sparse_parameters()
        self.rows = WorkerRows(group, weight.detach(), hot, distinct, max_hot_rows)
        self.shard, self.replicas = self.rows.shard, self.rows.replicas
        self.local = False
        self.pending: list[Fetched] = []
        self.ahead: Fetched | None = None

    @property
    def flops(self) -> PerBlock:
        return PerBlock(0, 0)

    def dense_parameters(self) -> list[nn.Parameter]:
        return []

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.shard, self.replicas]

    def forward(self, batch: Batch) -> Vectors:
        lookups = self.table_rows.lookups(batch)
        fetched = self.ahead or self.rows.fetch(lookups.rows(), self.local)
        self.ahead = None
        if torch.is_grad_enabled():
            self.pending.append(fetched)
        moved = lookups.at(fetched.position)
        return assemble(moved, ComputedRows(fetched.values), self.width, self.rows.device)

    def join(self) -> None:
        """Takes part in a call of the other workers, without lookups of its own."""
        fetched = self.ahead or self.rows.fetch(np.zeros(0, np.int64), self.local)
        self.ahead = None
        if torch.is_grad_enabled():
            self.pending.append(fetched)

    def push(self) -> None:
        """Sends the gradients of the calls since the last push."""
        self.rows.push(self.pending)
        self.pending = []

    def hot_rows_of(self, batch: Batch) -> NDArray[np.bool_]:
        """Returns the rows of a batch whose lookups are all of replicated rows, bool [rows]."""
        lookups = self.table_rows.lookups(batch)
        context, candidate = (self._hot(block) for block in (lookups.context, lookups.candidate))
        return candidate & (context if batch.context_row is None else context[batch.context_row])

    def _hot(self, block: BlockLookups) -> NDArray[np.bool_]:
        hot: NDArray[np.bool_] = np.all(self.rows.is_hot(block.singles), axis=1)
        if block.bags is not None and hot.size:
            cold = np.concatenate(([0], np.cumsum(~self.rows.is_hot(block.bags.rows))))
            ends = cold[block.bags.offsets[:: block.bags.features]]
            hot[np.diff(ends) > 0] = False
        return hot
