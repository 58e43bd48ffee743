"""The embedding stage: a batch's look-ups -> vectors, whatever the representation.

A stage gives the model two blocks of vectors, `singles` [rows, S, D] and `bags` [rows, B, D], in the
schema's slot order. Representations differ only here; the dense part never knows which it was.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from models.batch import Batch


class Vectors(NamedTuple):
    """singles: [rows, single-valued slots, D]; bags: [rows, multi-valued slots, D]."""

    singles: Tensor
    bags: Tensor


class Stage(Protocol):
    """One representation of all categorical features."""

    @property
    def width(self) -> int:
        """D, the length of a vector."""
        ...

    @property
    def singles(self) -> int:
        """S, vectors a row of single-valued features (twice their number for hybrid)."""
        ...

    @property
    def bags(self) -> int:
        """B, vectors a row of multi-valued features."""
        ...

    def __call__(self, batch: Batch) -> Vectors: ...

    def to(self, device: torch.device) -> Stage:
        """Moves the stage's tensors, and gives the stage."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors a bundle stores; a stage is a torch module."""
        ...

    @property
    def flops(self) -> int:
        """Floating point operations a row, look-ups not counted."""
        ...

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """Weights that every batch touches, for Adam."""
        ...

    def sparse_parameters(self) -> list[torch.nn.Parameter]:
        """Weights [rows, D] whose gradients are sparse, for the row-wise optimiser."""
        ...
