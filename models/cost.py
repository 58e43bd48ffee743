"""What a model costs: the bytes of its numbers, and the arithmetic of one row.

A bundle goes in. Operations are counted from the model's shape, a multiply-add as two, for a row of a
plain batch: a context shared by a request's candidates is counted for each of them. What only moves
data (look-ups, concatenation) or is one operation an element (biases, ReLU, sigmoid) is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from models.bundle import EMBEDDINGS, NET, Bundle
from models.dlrm import Architecture


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating point operations of one row, by part of the model."""

    embedding: int
    bottom: int
    interaction: int
    top: int

    @property
    def total(self) -> int:
        return self.embedding + self.bottom + self.interaction + self.top

    def as_dict(self) -> dict[str, int]:
        """JSON-able, with the total."""
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True, slots=True)
class Bytes:
    """Size on disk of a model's numbers: what embeds ids (rows, decoders), and the dense net."""

    rows: int
    net: int

    @property
    def total(self) -> int:
        return self.rows + self.net

    def as_dict(self) -> dict[str, int]:
        """JSON-able, with the total."""
        return {**asdict(self), "total": self.total}


def flops(bundle: Bundle) -> Flops:
    """Operations of one row."""
    stage = bundle.stage()
    shape = bundle.manifest.architecture
    dense = len(bundle.manifest.schema_.dense)
    return net_flops(shape, dense, sum(stage.slots), stage.flops)


def net_flops(shape: Architecture, dense: int, slots: int, embedding: int = 0) -> Flops:
    """Operations of a dense net that reads `dense` numbers and `slots` vectors a row."""
    vectors = slots + (1 if dense else 0)
    joined, interaction = vectors * shape.width, 0
    if shape.interaction == "dot":
        # each pair once, although a runtime may well multiply the whole square
        pairs = vectors * (vectors + (1 if shape.itself else -1)) // 2
        joined = pairs + (shape.width if dense else 0)
        interaction = 2 * pairs * shape.width
    elif shape.interaction == "cross":
        # x0 * (U V x + b) + x: two thin products, and one multiply-add an element
        rank = min(shape.cross_rank, joined)
        interaction = shape.cross_layers * (2 * 2 * joined * rank + 2 * joined)
    bottom = _products((dense, *shape.bottom, shape.width)) if dense else 0
    return Flops(embedding, bottom, interaction, _products((joined, *shape.top, 1)))


def sizes(bundle: Bundle) -> Bytes:
    """Bytes by file: their total is `bundle.bytes`."""
    files = bundle.manifest.files
    return Bytes(files[EMBEDDINGS].bytes, files[NET].bytes)


def _products(widths: Sequence[int]) -> int:
    return sum(2 * fan_in * fan_out for fan_in, fan_out in pairwise(widths))
