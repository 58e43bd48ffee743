"""Computes the cost of a bundle: bytes of its weights and floating-point operations per row.

Operations are derived from the model's shape for a row of a plain batch, with a multiply-add counted as two.
A context shared by several candidates is counted for each of them. Data movement (lookups, concatenation)
and elementwise operations (biases, ReLU, sigmoid) are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.context_once import ContextOnce, first_layer
from polyrec.models.dlrm.dlrm import Architecture, DenseNet
from polyrec.models.dlrm.interaction import Cross, Dot


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating point operations per row, by part of the model."""

    embedding: int
    bottom: int
    interaction: int
    top: int

    @property
    def total(self) -> int:
        return self.embedding + self.bottom + self.interaction + self.top

    def as_dict(self) -> dict[str, int]:
        """Returns a JSON-serializable dict, including the total."""
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True, slots=True)
class Bytes:
    """Size on disk of a model's weights: embedding stage (rows, decoders) and dense net."""

    rows: int
    net: int

    @property
    def total(self) -> int:
        return self.rows + self.net

    def as_dict(self) -> dict[str, int]:
        """Returns a JSON-serializable dict, including the total."""
        return {**asdict(self), "total": self.total}


def flops(bundle: Bundle) -> Flops:
    """Counts operations per row."""
    stage = bundle.stage()
    dense = len(bundle.manifest.schema_.numbers)
    return net_flops(bundle.shape, dense, sum(stage.slots), sum(stage.flops))


def net_flops(shape: Architecture, dense: int, slots: int, embedding: int = 0) -> Flops:
    """Counts the operations of a dense net that reads `dense` numbers and `slots` vectors per row."""
    vectors = slots + (1 if dense else 0)
    joined, interaction = vectors * shape.width, 0
    if shape.interaction == "dot":
        # each pair once, although a runtime may compute the whole square
        pairs = vectors * (vectors + (1 if shape.itself else -1)) // 2
        joined = pairs + (shape.width if dense else 0)
        interaction = 2 * pairs * shape.width
    elif shape.interaction == "cross":
        # x0 * (U V x + b) + x: two thin products, and one multiply-add per element
        rank = min(shape.cross_rank, joined)
        interaction = shape.cross_layers * (2 * 2 * joined * rank + 2 * joined)
    bottom = _products((dense, *shape.bottom, shape.width)) if dense else 0
    return Flops(embedding, bottom, interaction, _products((joined, *shape.top, 1)))


@dataclass(frozen=True, slots=True)
class RankingFlops:
    """Operations of a ranking request: `context` once, `row` per candidate."""

    context: int
    row: int


def ranking_flops(bundle: Bundle) -> RankingFlops:
    """Counts operations of a ranking request with the context computed once (models/dlrm/context_once.py)."""
    embedding, net = bundle.stage().flops, ranking_net_flops(bundle.net())
    return RankingFlops(embedding.context + net.context, embedding.candidate + net.row)


def ranking_net_flops(net: DenseNet) -> RankingFlops:
    """Counts the dense net's operations of a ranking request."""
    once = ContextOnce(net)
    shape, interaction = net.shape, net.interaction
    row, context = (2 * once.get_buffer(name).numel() for name in ("row_weight", "context_weight"))
    bottom = _products((sum(net.dense), *shape.bottom, shape.width)) if net.bottom is not None else 0
    context, row = context + bottom * once.bottom_per_context, row + bottom * once.bottom_per_row
    first = first_layer(net)
    top = _products((first.in_features, *shape.top, 1))
    if isinstance(interaction, Dot):
        inside = net.slots.context + once.bottom_per_context
        outside = net.slots.candidate + once.bottom_per_row
        context += 2 * inside**2 * shape.width
        row += 2 * (outside * inside + outside**2) * shape.width
    if isinstance(interaction, Cross):
        # the first `down` product is shared; the other products are per row
        layers, rank = shape.cross_layers, min(shape.cross_rank, first.in_features)
        row += (2 * layers - 1) * 2 * first.in_features * rank + 2 * layers * first.in_features
        return RankingFlops(context, row + top)
    return RankingFlops(context, row + top - 2 * first.in_features * first.out_features)


def sizes(bundle: Bundle) -> Bytes:
    """Returns the bytes of rows and dense net; the total equals `bundle.bytes`."""
    return Bytes(bundle.rows_bytes, bundle.net_bytes)


def _products(widths: Sequence[int]) -> int:
    return sum(2 * fan_in * fan_out for fan_in, fan_out in pairwise(widths))
