"""The deep learning recommendation model (Naumov et al., arXiv 1906.00091).

    dense values --> bottom MLP --.
                                  interaction --> top MLP --> logit
    ranks --> embedding stage ----'

The embedding stage (models/embeddings) is the representation; the rest, `DenseNet`, is the same for all
representations, sees no ids, and is what is exported to ONNX. Here every row is computed in full;
models/dlrm/context_once.py computes the same function with less work where rows share a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from polyrec.models.dlrm.interaction import Cat, Cross, Dot
from polyrec.models.embeddings.stage import PerBlock, Stage, Vectors
from polyrec.models.errors import SchemaError
from polyrec.models.files import Strict
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.schema import Schema
from polyrec.models.transfer import on_device

Width = Annotated[int, Field(ge=1, le=2**16)]
"""Width of a layer; the limit is far beyond any trained model and bounds memory."""
Widths = tuple[Width, ...]


class Architecture(Strict):
    """The shape of a DLRM. Hidden widths only: the bottom MLP ends in `width`, the top MLP in 1."""

    width: Annotated[int, Field(ge=1, le=4096)] = 16
    bottom: Widths = (64,)
    top: Widths = (128, 64)
    interaction: Literal["dot", "cat", "cross"] = "dot"
    itself: bool = False
    cross_layers: Annotated[int, Field(ge=1, le=256)] = 3
    cross_rank: Width = 64


class Inputs(NamedTuple):
    """Inputs of the dense net for a batch of `rows` rows and `contexts` contexts.

    dense_context: [contexts, dense features of the context], dense_candidate: [rows, ...].
    context, candidate: the stage's vectors. context_row: int64 [rows], or None where row r has context r.
    """

    dense_context: Tensor
    dense_candidate: Tensor
    context: Tensor
    candidate: Tensor
    context_row: Tensor | None


class DenseNet(nn.Module):
    """Bottom MLP, interaction, top MLP: `Inputs` -> logits [rows].

    dense: dense features of context and candidate. Every layer but the last is followed by ReLU, as in
    DLRM.
    """

    def __init__(self, shape: Architecture, dense: PerBlock, slots: PerBlock, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.dense = dense
        self.slots = slots
        self.bottom = mlp((sum(dense), *shape.bottom, shape.width)) if sum(dense) else None
        vectors = sum(slots) + (self.bottom is not None)
        if shape.interaction == "dot" and vectors < 2 and not shape.itself:
            raise SchemaError("a single vector has no pairs: the dot interaction needs a second feature")
        if shape.interaction == "dot":
            self.interaction: Dot | Cat | Cross = Dot(vectors, self.bottom is not None, shape.itself)
            pairs = vectors * (vectors + (1 if shape.itself else -1)) // 2
            joined = pairs + (shape.width if self.bottom is not None else 0)
        else:
            joined = vectors * shape.width
            self.interaction = (
                Cat()
                if shape.interaction == "cat"
                else Cross(joined, shape.cross_layers, min(shape.cross_rank, joined))
            )
        self.dropout = nn.Dropout(dropout)
        self.top = mlp((joined, *shape.top), dropout)
        self.output = nn.Linear((joined, *shape.top)[-1], 1)

    def forward(self, inputs: Inputs) -> Tensor:
        dense, context = inputs.dense_context, inputs.context
        if inputs.context_row is not None:
            dense = dense.index_select(0, inputs.context_row)
            context = context.index_select(0, inputs.context_row)
        parts = [context, inputs.candidate]
        if self.bottom is not None:
            parts.insert(0, self.bottom(torch.cat((dense, inputs.dense_candidate), dim=1)).unsqueeze(1))
        joined: Tensor = self.interaction(torch.cat(parts, dim=1))
        return self.output(self.top(self.dropout(joined))).squeeze(1)  # type: ignore[no-any-return]


def dense_slots(schema: Schema) -> PerBlock:
    """Counts the dense features of context and candidate."""
    return PerBlock(len(schema.context.dense), len(schema.candidate.dense))


def mlp(widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Builds an MLP: Linear (He-initialized), ReLU and optional dropout per width."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """An embedding stage and a dense net. `forward(batch)` gives logits, float32 [rows]."""

    def __init__(self, stage: Stage, net: DenseNet) -> None:
        super().__init__()
        self.stage = stage
        self.net = net

    def forward(self, batch: Batch) -> Tensor:
        return self.net(inputs_of(batch, self.stage(batch)))  # type: ignore[no-any-return]


def inputs_of(batch: Batch, vectors: Vectors) -> Inputs:
    """Collects the inputs of the dense net for a batch, on the device of its vectors."""
    device = vectors.candidate.device
    row = None if batch.context_row is None else on_device(batch.context_row, device)
    return Inputs(
        on_device(batch.context.dense, device),
        on_device(batch.candidate.dense, device),
        vectors.context,
        vectors.candidate,
        row,
    )
