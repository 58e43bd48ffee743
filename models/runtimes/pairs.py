"""Selects the pairs of the dot interaction from a square of products, in contiguous pieces of memory.

n vectors have n x n products with one another, n (n - 1) / 2 of which are pairs. Gathering these one by one
takes ONNX Runtime longer than computing them. After its first number, the square is n - 1 chunks of n + 1:

    (i, i+1) ... (i, n-1)  (i+1, 0) ... (i+1, i)  (i+1, i+1)

The first n // 2 + 1 of each chunk contain every pair, about n / 2 of them twice. Two slices select them; the
layer that reads them has weight zero for repeated pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.runtimes.graph_writer import GraphWriter

SMALL = 4
"""Squares of fewer vectors are taken whole."""


def pair_columns(g: GraphWriter, square: str, vectors: int, itself: bool) -> str:
    """Adds the selection from `square` [rows, vectors ** 2]; returns [rows, columns].

    itself: whether the product of a vector with itself counts as a pair.
    """
    if vectors < SMALL:
        return square
    n, first = vectors, 0 if itself else 1
    chunks = g.node("Slice", square, g.shape(first), g.shape(first + n * n - 1), g.shape(1))
    chunks = g.node("Reshape", chunks, g.shape(-1, n - 1, n + 1))
    taken = _taken(n, itself)
    block = g.node("Slice", chunks, g.shape(0), g.shape(taken), g.shape(2))
    block = g.node("Reshape", block, g.shape(-1, (n - 1) * taken))
    if not itself:
        return block
    return g.concat((block, g.node("Slice", square, g.shape(n * n - 1), g.shape(n * n), g.shape(1))))


def column_pairs(vectors: int, itself: bool) -> NDArray[np.int64]:
    """Returns the pair of each column of `pair_columns`: i * vectors + j with j <= i, or -1 for a repeat."""
    n, first = vectors, 0 if itself else 1
    if n < SMALL:
        places = np.arange(n * n)
    else:
        places = first + ((n + 1) * np.arange(n - 1)[:, None] + np.arange(_taken(n, itself))).ravel()
        if itself:
            places = np.append(places, n * n - 1)
    i, j = places // n, places % n
    pairs = np.maximum(i, j) * n + np.minimum(i, j)
    repeats = np.ones(pairs.size, bool)
    repeats[np.unique(pairs, return_index=True)[1]] = False
    pairs[repeats | ((i == j) & (not itself))] = -1
    return pairs


def pair_weights(square: Tensor, vectors: int, itself: bool) -> Tensor:
    """Returns the weights [out, columns] of the columns of `pair_columns`.

    square: weights of all products [out, vectors ** 2], zero above the diagonal.
    """
    pairs = column_pairs(vectors, itself)
    return square[:, np.maximum(pairs, 0).tolist()] * square.new_tensor(pairs >= 0)


def _taken(vectors: int, itself: bool) -> int:
    """Returns how many numbers of a chunk are selected: distances 1 to n // 2, and 0 if `itself`."""
    return vectors // 2 + 1 + itself
