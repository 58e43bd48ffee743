"""Implements row-wise Adagrad for embedding rows: one accumulator per row and column block.

It matches fbgemm's exact row-wise Adagrad, which DLRM training uses: repeated lookups of a row are summed
first, and the accumulator grows by the mean square of the row's gradient. Only touched rows move. With nested
widths, the columns that each width adds form a block: the first columns get gradients from every head, and a
single accumulator per row would slow the other columns down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class ColumnBlock(NamedTuple):
    """Columns [first, last) of every row. lr: their step size relative to the optimizer's."""

    first: int
    last: int
    lr: float = 1.0


class RowWiseAdagrad:
    """Updates parameters [rows, width] that have sparse gradients.

    lr: step size. eps: added to the root of the accumulator.
    decay: decoupled weight decay per update, applied to touched rows only.
    blocks: column blocks with an accumulator each; None: whole rows.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        eps: float = 1e-8,
        decay: float = 0.0,
        blocks: Sequence[ColumnBlock] | None = None,
    ) -> None:
        self.lr, self.eps, self.decay = lr, eps, decay
        self._state = [(p, _accumulators(p, blocks)) for p in parameters]

    def accumulators(self) -> list[Tensor]:
        """Returns the accumulated squares, [rows] for each parameter's blocks in order, without copying."""
        return [squares for _, of_parameter in self._state for _, squares in of_parameter]

    @torch.no_grad()
    def step(self, scale: float = 1.0) -> None:
        """Updates with step size `lr * scale`, then clears the gradients."""
        for parameter, accumulators in self._state:
            if parameter.grad is None:
                continue
            rows, change = summed_by_row(parameter.grad)
            for (first, last, lr), squares in accumulators:
                values = change[:, first:last]
                squares.index_add_(0, rows, values.square().mean(dim=1))
                values *= (-self.lr * lr * scale / (squares[rows].sqrt() + self.eps)).unsqueeze(1)
            if self.decay:
                change -= parameter[rows] * (self.lr * scale * self.decay)
            parameter.index_add_(0, rows, change)
            parameter.grad = None


def summed_by_row(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distinct rows of a sparse gradient, ascending, and each row's summed gradient.

    A row's gradients are added in their original order, whatever the row's number, so that rows that were
    moved get the same sums. `coalesce` takes four times as long and does not preserve the order of equal
    rows.
    """
    if gradient.device.type != "cpu":
        summed = gradient.coalesce()
        return summed.indices()[0], summed.values()
    rows, values = gradient._indices()[0].numpy(), gradient._values()
    bits = rows.size.bit_length()
    # sorting distinct numbers is faster than a stable sort
    keys = (rows << bits) | np.arange(rows.size)
    keys.sort()
    rows = keys >> bits
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    order, begin = torch.from_numpy(keys & ((1 << bits) - 1)), torch.from_numpy(begins)
    sums = torch.embedding_bag(values, order, begin, False, 0)[0]
    return torch.from_numpy(rows[begins]), sums


def _accumulators(
    parameter: nn.Parameter, blocks: Sequence[ColumnBlock] | None
) -> list[tuple[ColumnBlock, Tensor]]:
    blocks = blocks or [ColumnBlock(0, parameter.shape[1])]
    return [(block, torch.zeros(parameter.shape[0], device=parameter.device)) for block in blocks]
