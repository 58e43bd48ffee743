"""Embeds the batches of runtimes that execute the dense net outside torch."""

from __future__ import annotations

import torch

from polyrec.models.dlrm.dlrm import Inputs, inputs_of
from polyrec.models.embeddings.host_table import HostTable
from polyrec.models.embeddings.stage import Stage
from polyrec.models.runtimes.mixed_batch import HostInputs, split_plain_and_ranking
from polyrec.models.schema.batch import Batch


class Embedder:
    """Embeds with a stage, bypassing torch if its rows allow. A result is valid until the next call."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._host_table = HostTable.from_stage(stage)

    def __call__(self, batch: Batch) -> tuple[Inputs, ...]:
        """Returns the inputs of the dense net: for plain rows, then for ranking rows."""
        if self._host_table is not None:
            return split_plain_and_ranking(inputs_of(batch, self._host_table(batch)), batch.plain_rows)
        with torch.inference_mode():
            return split_plain_and_ranking(inputs_of(batch, self._stage(batch)), batch.plain_rows)

    def arrays(self, batch: Batch) -> tuple[HostInputs, ...] | None:
        """Returns the inputs as arrays; None if the stage's rows need torch."""
        if self._host_table is None:
            return None
        context, candidate = self._host_table.arrays(batch)
        inputs = HostInputs(batch.context.dense, batch.candidate.dense, context, candidate, batch.context_row)
        return split_plain_and_ranking(inputs, batch.plain_rows)
