"""Row-wise Adagrad for embedding rows: one accumulator a row, only touched rows move.

As in fbgemm's exact row-wise Adagrad, which DLRM training uses: duplicate look-ups of a row are
summed first, the accumulator grows by the mean square of the row's gradient.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class RowWiseAdagrad:
    """Updates parameters [rows, width] that carry sparse gradients.

    lr: step size. eps: added to the root of the accumulator. decay: decoupled weight decay, applied
    to touched rows only, per update.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, eps: float = 1e-8, decay: float = 0.0
    ) -> None:
        self.lr, self.eps, self.decay = lr, eps, decay
        self._state = [(p, torch.zeros(p.shape[0], device=p.device)) for p in parameters]

    @torch.no_grad()
    def step(self, scale: float = 1.0) -> None:
        """One update with `lr * scale`, then forgets the gradients."""
        for parameter, squares in self._state:
            if parameter.grad is None:
                continue
            gradient = parameter.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            squares.index_add_(0, rows, values.square().mean(dim=1))
            rate = -self.lr * scale / (squares[rows].sqrt() + self.eps)
            change = values * rate.unsqueeze(1)
            if self.decay:
                change -= parameter[rows] * (self.lr * scale * self.decay)
            parameter.index_add_(0, rows, change)
            parameter.grad = None
