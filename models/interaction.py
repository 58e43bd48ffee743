"""Feature interactions: how the bottom MLP's output and the vectors meet.

Each takes `bottom` [rows, D] (None for a model without dense features) and `vectors` [rows, F, D],
and gives what the top MLP reads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dot(nn.Module):
    """Dot products of all pairs of vectors, in DLRM's order, behind the bottom output.

    Pairs are (i, j) with j < i (j <= i with `itself`), row by row, the bottom output being vector 0
    (facebookresearch/dlrm, `interact_features`). Output [rows, D + pairs].
    """

    def __init__(self, vectors: int, itself: bool = False) -> None:
        super().__init__()
        i, j = torch.tril_indices(vectors, vectors, 0 if itself else -1)
        self.register_buffer("pairs", i * vectors + j, persistent=False)

    def forward(self, bottom: Tensor | None, vectors: Tensor) -> Tensor:
        x = vectors if bottom is None else torch.cat((bottom.unsqueeze(1), vectors), dim=1)
        products = torch.bmm(x, x.transpose(1, 2)).flatten(1)
        chosen = products.index_select(1, self.get_buffer("pairs"))
        return chosen if bottom is None else torch.cat((bottom, chosen), dim=1)


class Cat(nn.Module):
    """Everything side by side. Output [rows, (1 + F) * D]."""

    def forward(self, bottom: Tensor | None, vectors: Tensor) -> Tensor:
        flat = vectors.flatten(1)
        return flat if bottom is None else torch.cat((bottom, flat), dim=1)


class Cross(nn.Module):
    """DCN-v2's low-rank cross layers: x' = x0 * (U V x + b) + x (arXiv 2008.13535, eq. 3; MLPerf DLRM-v2).

    Output [rows, (1 + F) * D].
    """

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        downs = [nn.Linear(width, rank, bias=False) for _ in range(layers)]
        ups = [nn.Linear(rank, width) for _ in range(layers)]
        for linear in (*downs, *ups):
            nn.init.xavier_normal_(linear.weight)
        for linear in ups:
            nn.init.zeros_(linear.bias)
        self.down, self.up = nn.ModuleList(downs), nn.ModuleList(ups)

    def forward(self, bottom: Tensor | None, vectors: Tensor) -> Tensor:
        flat = vectors.flatten(1)
        first = flat if bottom is None else torch.cat((bottom, flat), dim=1)
        x = first
        for down, up in zip(self.down, self.up, strict=True):
            x = first * up(down(x)) + x
        return x
