"""Implements the table representation for training with rows that are partly in a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from polyrec.models.embeddings.lookups import FusedRows, Lookups
from polyrec.models.embeddings.pooling import assemble
from polyrec.models.embeddings.stage import PerBlock, Vectors
from polyrec.models.embeddings.store import ComputedRows
from polyrec.models.schema.batch import Batch
from polyrec.models.training.tiers.resident import PreparedRows, ResidentRows

HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch whose rows are in memory. lookups: refer to slots of the weight instead of rows."""

    batch: Batch
    lookups: Lookups
    rows: PreparedRows


class ResidentStage(nn.Module):
    """A TableStage whose rows are partly in memory.

    With gradients, call it with the prepared batch `ahead`. Without gradients, any batch works; its rows are
    read from memory or the file.
    """

    def __init__(self, rows: FusedRows, slots: PerBlock, resident: ResidentRows) -> None:
        super().__init__()
        self.rows, self.slots, self.resident = rows, slots, resident
        self.ahead: PreparedBatch | None = None

    @property
    def width(self) -> int:
        return self.resident.width

    @property
    def flops(self) -> PerBlock:
        return PerBlock(0, 0)

    def dense_parameters(self) -> list[nn.Parameter]:
        return []

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.resident.store.weight]

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Brings the rows of the next step's batch into memory; see `ResidentRows.prepare`."""
        lookups = self.rows.lookups(batch)
        prepared = self.resident.prepare(lookups.rows())
        return PreparedBatch(batch, lookups.at(prepared.slots), prepared)

    def forward(self, batch: Batch) -> Vectors:
        if torch.is_grad_enabled():
            if self.ahead is None or self.ahead.batch is not batch:
                raise ValueError("the rows of the batch were not prepared")
            return assemble(self.ahead.lookups, self.resident.store, self.width, HOST)
        lookups = self.rows.lookups(batch)
        distinct, place = np.unique(lookups.rows(), return_inverse=True)
        source = ComputedRows(torch.from_numpy(self.resident.read(distinct)))
        return assemble(lookups.at(place), source, self.width, HOST)
