"""DHE's decoders: map the hash codes of ids to vectors, one MLP per table, all tables together.

The weights of all tables are stacked, so that a batch takes a few batched matrix products. Tables rarely need
equally many vectors (a ranking request has one user and many items), and a product over all of them would be
padded to the longest. So consecutive tables share a product only while the padding stays small: one product
for a balanced batch, a few for a ranking request. A vector must not depend on how many others are computed
with it, so in inference the smallest products are padded as well (models/dlrm/batch_invariance.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyrec.models.dlrm.batch_invariance import affine, min_batch_rows
from polyrec.models.schema.batch import I64

PADDING = 1.25


class Decoders(nn.Module):
    """MLPs of `tables` tables: k -> hidden widths (ReLU) -> width (linear).

    The papers' artifact ends in a sigmoid; a linear output trains better here and can represent any row
    (docs/representations.md).
    """

    def __init__(self, tables: int, k: int, hidden: Sequence[int], width: int) -> None:
        super().__init__()
        self.sizes = (k, *hidden, width)
        self.width = width
        self.weights = nn.ParameterList(
            torch.empty(tables, fan_in, fan_out) for fan_in, fan_out in pairwise(self.sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(tables, 1, fan_out) for fan_out in self.sizes[1:])
        self._min_rows = min_batch_rows((a * b for a, b in pairwise(self.sizes)), torch.float32)

    def initialize(self, generator: torch.Generator, spread: Sequence[float]) -> None:
        """He initialization; table t's vectors start with a deviation of about `spread[t]`."""
        with torch.no_grad():
            for weight in self.weights:
                weight.normal_(0.0, math.sqrt(2.0 / weight.shape[1]), generator=generator)
            # uniform codes have variance 1/3, which He initialization carries through the layers
            gain = torch.tensor(spread).view(-1, 1, 1) / math.sqrt(2.0 / 3.0)
            self.weights[-1].mul_(gain)

    @property
    def flops(self) -> int:
        """Floating point operations per vector, without hashing."""
        return 2 * sum(fan_in * fan_out for fan_in, fan_out in pairwise(self.sizes))

    def forward(self, codes: Tensor, counts: I64) -> Tensor:
        """Returns vectors [n, width].

        codes: float32 [n, k], table by table; counts: int64 [tables], rows of each.
        """
        ends = np.cumsum(counts)
        parts = []
        for first, last in runs(counts):
            begin, end = int(ends[first] - counts[first]), int(ends[last - 1])
            if begin < end:
                parts.append(self._run(codes[begin:end], first, last, counts[first:last]))
        return torch.cat(parts) if parts else codes.new_empty((0, self.width))

    def _run(self, codes: Tensor, first: int, last: int, counts: I64) -> Tensor:
        tables, longest = last - first, int(counts.max())
        if not torch.is_grad_enabled():
            longest = max(longest, self._min_rows)
        even = bool((counts == longest).all())
        if even:
            x = codes.view(tables, longest, -1)
        else:
            slots = np.arange(longest) < counts[:, None]
            x = codes.new_zeros((tables, longest, codes.shape[1]))
            filled = torch.from_numpy(np.flatnonzero(slots)).to(codes.device)
            x = x.view(tables * longest, -1).index_copy(0, filled, codes).view(tables, longest, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                x = F.relu(x)
            x = affine(bias[first:last], x, weight[first:last])
        x = x.reshape(tables * longest, self.width)
        return x if even else x.index_select(0, filled)


def runs(counts: I64) -> list[tuple[int, int]]:
    """Splits tables into runs [first, last) to be padded to their longest table.

    A run ends before the padded rows would exceed `PADDING` times its actual rows.
    """
    out: list[tuple[int, int]] = []
    first, longest, total = 0, 0, 0
    for table, count in enumerate(counts.tolist()):
        padded = max(longest, count) * (table - first + 1)
        if table > first and padded > PADDING * (total + count):
            out.append((first, table))
            first, longest, total = table, 0, 0
        longest, total = max(longest, count), total + count
    out.append((first, len(counts)))
    return out
