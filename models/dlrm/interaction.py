"""Combines the bottom MLP's output and the embedding vectors (feature interactions).

Each module takes `x` [rows, F, D], all vectors of a row, and returns the input of the top MLP. If the model
has dense features, the bottom MLP's output is the first vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyrec.models.dlrm.initial_weights import draw


class Dot(nn.Module):
    """Dot products of all pairs of vectors, in DLRM's order, after the bottom output.

    Pairs are (i, j) with j < i (j <= i with `itself`), row by row, as in `interact_features` of
    facebookresearch/dlrm. Output [rows, pairs], or [rows, D + pairs] with a bottom output.
    """

    def __init__(self, vectors: int, bottom: bool, itself: bool = False) -> None:
        super().__init__()
        self.bottom = bottom
        # not tril_indices, which imports torch._dynamo on the meta device
        pairs = [i * vectors + j for i in range(vectors) for j in range(i + itself)]
        self.register_buffer("pairs", torch.tensor(pairs, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        products = torch.bmm(x, x.transpose(1, 2)).flatten(1)
        chosen = products.index_select(1, self.get_buffer("pairs"))
        return torch.cat((x[:, 0], chosen), dim=1) if self.bottom else chosen


class Cat(nn.Module):
    """Concatenates all vectors. Output [rows, F * D]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Cross(nn.Module):
    """DCN-v2's low-rank cross layers: x' = x0 * (U V x + b) + x (arXiv 2008.13535, eq. 3; MLPerf DLRM-v2).

    Output [rows, F * D].
    """

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        downs = [nn.Linear(width, rank, bias=False) for _ in range(layers)]
        ups = [nn.Linear(rank, width) for _ in range(layers)]
        for linear in (*downs, *ups):
            draw(nn.init.xavier_normal_, linear.weight)
        for linear in ups:
            nn.init.zeros_(linear.bias)
        self.down, self.up = nn.ModuleList(downs), nn.ModuleList(ups)

    def forward(self, x: Tensor) -> Tensor:
        first = x.flatten(1)
        return self.layers(first, self.down[0](first))

    def layers(self, first: Tensor, low: Tensor) -> Tensor:
        """Computes all layers; `low` is the first layer's product with its `down` matrix."""
        x = first
        for i, up in enumerate(self.up):
            if i:
                low = self.down[i](x)
            x = first * up(low) + x
        return x
