"""Finds where the columns that read a foreign model's vectors go when these change their order.

Polyrec's dense net reads the context's features before the candidate's, and in each role single values before
lists. A foreign model reads them in the order of its file, so the weights that read them move along.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def joined_columns(interaction: str, itself: bool, width: int, slots: Sequence[int]) -> Tensor:
    """Returns the old column of each number that the interaction gives in the new order, int64 [numbers].

    width: of a vector. slots: for each embedded vector in the new order, its place in the old one; the bottom
    MLP's vector stays before them. itself: of the dot interaction, whether it has each vector's own product.
    """
    vectors = torch.tensor([0, *(1 + place for place in slots)])
    if interaction != "dot":
        return (vectors[:, None] * width + torch.arange(width)).flatten()
    n = vectors.numel()
    i, j = torch.tril_indices(n, n, 0 if itself else -1)
    place = torch.zeros(n, n, dtype=torch.long)
    place[i, j] = place[j, i] = torch.arange(i.numel())
    return torch.cat((torch.arange(width), width + place[vectors[i], vectors[j]]))
