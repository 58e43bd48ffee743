"""Implements the deep learning recommendation model (Naumov et al., arXiv 1906.00091).

    dense values --> bottom MLP --.
                                  interaction --> top MLP --> logit
    ranks --> embedding stage ----'

The embedding stage (models/embeddings) is the representation. The rest, `DenseNet`, is the same for all
representations, sees no ids, and is the part exported to ONNX. Every row is computed in full here;
models/dlrm/context_once.py computes the same function with less work where rows share a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from polyrec.models.dlrm.initial_weights import draw
from polyrec.models.dlrm.interaction import Cat, Cross, Dot
from polyrec.models.embeddings.stage import PerBlock, Stage, Vectors
from polyrec.models.errors import SchemaError
from polyrec.models.files import Strict
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.schema import Schema
from polyrec.models.transfer import on_device

Width = Annotated[int, Field(ge=1, le=2**16)]
"""Width of a layer. The limit bounds memory and is far above any trained model."""
Widths = tuple[Width, ...]
VectorWidth = Annotated[int, Field(ge=1, le=4096)]
MIN_HIDDEN = 16
"""Minimum width of the scaled hidden layers of narrow heads."""
HEADS = "heads_by_width"
"""Name prefix of a nested net's tensors, as in `heads_by_width.16.output.bias`."""


class Architecture(Strict):
    """The shape of a DLRM.

    bottom, top: hidden widths only; the bottom MLP ends in `width`, the top MLP in 1.
    widths: widths of nested vectors, increasing, the last equal to `width`. The first w columns of a row form
        a vector of width w, which has a dense net (head) of its own. Empty for a model that is not nested.

    The defaults are the best on average over the public data sets (docs/results/recipes.md).
    """

    width: VectorWidth = 16
    widths: Annotated[tuple[VectorWidth, ...], Field(max_length=32)] = ()
    bottom: Widths = (64,)
    top: Widths = (256,)
    interaction: Literal["dot", "cat", "cross"] = "cross"
    itself: bool = False
    cross_layers: Annotated[int, Field(ge=1, le=256)] = 2
    cross_rank: Width = 64

    @model_validator(mode="before")
    @classmethod
    def _width_is_the_last_of_widths(cls, given: Any) -> Any:
        if isinstance(given, dict) and "width" not in given:
            widths = given.get("widths")
            if widths and isinstance(widths, list | tuple):
                return given | {"width": widths[-1]}
        return given

    @model_validator(mode="after")
    def _widths_increase(self) -> Architecture:
        if any(a >= b for a, b in pairwise(self.widths)):
            raise ValueError(f"widths must increase: {list(self.widths)}")
        if self.widths and self.widths[-1] != self.width:
            raise ValueError(f"the last of widths {list(self.widths)} must be the width, {self.width}")
        return self

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Columns [first, last) that each width adds to the previous one."""
        ends = self.widths or (self.width,)
        return tuple(zip((0, *ends[:-1]), ends, strict=True))

    def head(self, width: int) -> Architecture:
        """Returns the shape of the dense net for one of `widths`; hidden layers shrink in proportion."""

        def scaled(size: int) -> int:
            return min(size, max(MIN_HIDDEN, -(-size * width // self.width)))

        return Architecture(
            width=width,
            bottom=tuple(map(scaled, self.bottom)),
            top=tuple(map(scaled, self.top)),
            interaction=self.interaction,
            itself=self.itself,
            cross_layers=self.cross_layers,
            cross_rank=scaled(self.cross_rank),
        )


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
    """Maps `Inputs` to logits [rows]: bottom MLP, interaction, top MLP.

    dense: number of dense features per block. Every layer but the last is followed by ReLU, as in DLRM.
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

    @property
    def heads(self) -> tuple[DenseNet, ...]:
        """The dense nets by width; a plain net has one."""
        return (self,)

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


class NestedNet(nn.Module):
    """One dense net per width of nested vectors; the net of width w reads their first w columns.

    Matryoshka representation learning (arXiv 2205.13147) with a separate head per width. Heads sliced from a
    single one (the paper's MRL-E) lose .0007 to .007 of information gain on MovieLens.
    """

    def __init__(self, shape: Architecture, dense: PerBlock, slots: PerBlock, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape, self.dense, self.slots = shape, dense, slots
        nets = {str(w): DenseNet(shape.head(w), dense, slots, dropout) for w in shape.widths}
        self.add_module(HEADS, nn.ModuleDict(nets))

    @property
    def heads(self) -> tuple[DenseNet, ...]:
        """The dense nets, by ascending width."""
        return tuple(self.get_submodule(f"{HEADS}.{w}") for w in self.shape.widths)  # type: ignore[misc]


Net = DenseNet | NestedNet


def initial_net(shape: Architecture, dense: PerBlock, slots: PerBlock, dropout: float = 0.0) -> Net:
    """Creates an untrained dense net, nested if the shape has widths."""
    return (NestedNet if shape.widths else DenseNet)(shape, dense, slots, dropout)


def dense_slots(schema: Schema) -> PerBlock:
    """Returns the number of dense features of context and candidate."""
    return PerBlock(len(schema.context.dense), len(schema.candidate.dense))


def mlp(widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Builds an MLP: per width a He-initialized linear layer, ReLU and optional dropout."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        linear = nn.Linear(fan_in, fan_out)
        draw(partial(nn.init.kaiming_normal_, nonlinearity="relu"), linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """An embedding stage and a dense net, plain or nested."""

    def __init__(self, stage: Stage, net: Net) -> None:
        super().__init__()
        self.stage = stage
        self.net = net

    def forward(self, batch: Batch) -> Tensor:
        """Returns logits of the widest head, float32 [rows]."""
        return self.net.heads[-1](inputs_of(batch, self.stage(batch)))  # type: ignore[no-any-return]

    def logits(self, batch: Batch) -> Tensor:
        """Returns the logits of every head, float32 [heads, rows]; all heads share one gather."""
        inputs = inputs_of(batch, self.stage(batch))
        return torch.stack([head(first_columns(inputs, head.shape.width)) for head in self.net.heads])


def first_columns(inputs: Inputs, width: int) -> Inputs:
    """Returns the inputs with each vector cut to its first `width` columns."""
    return inputs._replace(context=inputs.context[..., :width], candidate=inputs.candidate[..., :width])


def inputs_of(batch: Batch, vectors: Vectors) -> Inputs:
    """Collects the dense net's inputs for a batch, on the device of its vectors."""
    device = vectors.candidate.device
    row = None if batch.context_row is None else on_device(batch.context_row, device)
    return Inputs(
        on_device(batch.context.dense, device),
        on_device(batch.candidate.dense, device),
        vectors.context,
        vectors.candidate,
        row,
    )
