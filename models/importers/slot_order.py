"""Computes the new positions of the columns that read a foreign model's vectors, when the vectors are
reordered.

Polyrec's dense net reads the context's features before the candidate's, and within each role single values
before lists. A foreign model reads them in the order of its file, so the weights that read them are reordered
too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def joined_columns(interaction: str, itself: bool, width: int, slots: Sequence[int]) -> Tensor:
    """Returns, for each number that the interaction yields in the new order, its old column, int64 [numbers].

    width: of a vector. slots: for each embedded vector in the new order, its old position; the bottom MLP's
    vector stays ahead of them.
    itself: whether a dot interaction includes each vector's product with itself.
    """
    vectors = torch.tensor([0, *(1 + place for place in slots)])
    if interaction != "dot":
        return (vectors[:, None] * width + torch.arange(width)).flatten()
    n = vectors.numel()
    i, j = torch.tril_indices(n, n, 0 if itself else -1)
    place = torch.zeros(n, n, dtype=torch.long)
    place[i, j] = place[j, i] = torch.arange(i.numel())
    return torch.cat((torch.arange(width), width + place[vectors[i], vectors[j]]))
