"""Defines the embedding stage, which turns the lookups of a batch into vectors, for any representation.

A stage returns the vectors of each block separately, so that a context shared by many candidates is looked up
and computed once. Representations differ only here; the dense net is the same for all.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyrec.models.schema.batch import Batch


class Vectors(NamedTuple):
    """The vectors that an embedding stage returns for a batch.

    context: [context rows, context slots, D]; candidate: [rows, candidate slots, D].
    """

    context: Tensor
    candidate: Tensor


class PerBlock(NamedTuple):
    """A number for each block: vectors per row, dense features, or operations."""

    context: int
    candidate: int


class Stage(Protocol):
    """One representation of all categorical features."""

    @property
    def width(self) -> int:
        """D, the length of a vector."""
        ...

    @property
    def slots(self) -> PerBlock:
        """Vectors per row: the schema's features, single-valued first (twice as many for hybrid)."""
        ...

    def __call__(self, batch: Batch) -> Vectors: ...

    def to(self, device: torch.device) -> Stage:
        """Moves the stage's tensors to a device and returns the stage."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the tensors that a bundle stores; a stage is a torch module."""
        ...

    @property
    def flops(self) -> PerBlock:
        """Floating-point operations per row of each block, without lookups."""
        ...

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """Returns the weights that every batch touches, for Adam."""
        ...

    def sparse_parameters(self) -> list[torch.nn.Parameter]:
        """Returns the weights [rows, D] with sparse gradients, for the row-wise optimizer."""
        ...
