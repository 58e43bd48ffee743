"""The deep learning recommendation model (Naumov et al., arXiv 1906.00091).

    dense values --> bottom MLP --.
                                  interaction --> top MLP --> logit
    ranks --> embedding stage ----'

The embedding stage (models/embeddings) is the representation; the rest, `DenseNet`, is the same for
all of them, knows no ids, and is what goes to ONNX or any other executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from models.batch import Batch
from models.embeddings.stage import Stage, Vectors
from models.interaction import Cat, Cross, Dot
from models.schema import Strict

Widths = tuple[Annotated[int, Field(ge=1)], ...]


class Architecture(Strict):
    """The shape of a DLRM. Hidden widths only: the bottom MLP ends in `width`, the top MLP in 1."""

    width: Annotated[int, Field(ge=1, le=4096)] = 16
    bottom: Widths = (64,)
    top: Widths = (128, 64)
    interaction: Literal["dot", "cat", "cross"] = "dot"
    itself: bool = False
    cross_layers: Annotated[int, Field(ge=1)] = 3
    cross_rank: Annotated[int, Field(ge=1)] = 64


class DenseNet(nn.Module):
    """Bottom MLP, interaction, top MLP.

    dense [rows, dense features], singles [rows, S, D], bags [rows, B, D] -> logits [rows].
    Every layer but the last is followed by ReLU, as in DLRM.
    """

    def __init__(self, shape: Architecture, dense: int, slots: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.dense_features = dense
        self.slots = slots
        self.bottom = mlp((dense, *shape.bottom, shape.width)) if dense else None
        vectors = slots + (1 if dense else 0)
        if shape.interaction == "dot":
            self.interaction: Dot | Cat | Cross = Dot(vectors, shape.itself)
            pairs = vectors * (vectors + (1 if shape.itself else -1)) // 2
            joined = pairs + (shape.width if dense else 0)
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

    def forward(self, dense: Tensor, singles: Tensor, bags: Tensor) -> Tensor:
        bottom = None if self.bottom is None else self.bottom(dense)
        vectors = torch.cat((singles, bags), dim=1) if bags.shape[1] else singles
        joined: Tensor = self.interaction(bottom, vectors)
        return self.output(self.top(self.dropout(joined))).squeeze(1)  # type: ignore[no-any-return]


def mlp(widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Linear and ReLU per width, He-initialised, dropout behind each when asked."""
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
        return self.score(dense_of(batch, next(self.net.parameters()).device), self.stage(batch))

    def score(self, dense: Tensor, vectors: Vectors) -> Tensor:
        """Logits from the stage's vectors."""
        return self.net(dense, vectors.singles, vectors.bags)  # type: ignore[no-any-return]


def dense_of(batch: Batch, device: torch.device) -> Tensor:
    """The dense values of all rows, context first: float32 [rows, dense features]."""
    context = torch.from_numpy(batch.context.dense)
    candidate = torch.from_numpy(batch.candidate.dense)
    if not context.shape[1]:
        return candidate.to(device)
    if batch.context_row is not None:
        context = context[torch.from_numpy(batch.context_row)]
    return torch.cat((context, candidate), dim=1).to(device)
