"""Multiplies the pairs of the dot interaction, so that they lie in contiguous pieces of memory.

n vectors have n (n - 1) / 2 pairs. Gathering these one by one from all products takes ONNX Runtime longer
than computing them. So the vectors are multiplied with all but the first of them, [n, n - 1]. In memory that
is also n - 1 chunks of n, and chunk k is

    (k, k+1) ... (k, n-1)  (k+1, 1) ... (k+1, k+1)

Counted from its last number, (k+1, k+1), position d is a pair at distance d or n - d. So the n // 2 numbers
before the last one of each chunk are the pairs of the vectors after the first, each once, or twice at a
distance of n / 2. In the first chunk they are pairs of the first vector, whose other pairs precede them. Two
slices select both. The layer that reads them has weight zero for repeated pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.runtimes.graph_writer import GraphWriter


def pair_products(g: GraphWriter, x: str, vectors: int, itself: bool, after_first: str = "") -> list[str]:
    """Adds the products of all pairs of vectors of x [rows, vectors, D].

    Returns the parts [rows, columns] that together are the columns of `column_pairs`, empty without pairs.

    itself: whether a vector with itself counts as a pair.
    after_first: x without its first vector, if the graph has it.
    """
    parts, n = [], vectors
    if n > 1:
        others = after_first or g.node("Slice", x, g.shape(1), g.shape(n), g.shape(1))
        products = g.products(x, others, n * (n - 1))
        before, taken = _before_and_taken(n)
        chunks = g.node("Reshape", products, g.shape(-1, n - 1, n))
        window = g.node("Slice", chunks, g.shape(before), g.shape(before + taken), g.shape(2))
        parts.append(g.node("Reshape", window, g.shape(-1, (n - 1) * taken)))
        if before:
            parts.append(g.node("Slice", products, g.shape(0), g.shape(before), g.shape(1)))
    if itself:
        parts.append(g.node("ReduceSumSquare", x, axes=[2], keepdims=0))
    return parts


def column_pairs(vectors: int, itself: bool) -> NDArray[np.int64]:
    """Returns the pair of each column of `pair_products`: i * vectors + j with j <= i, or -1 for a repeat."""
    n = vectors
    places = np.empty(0, np.int64)
    if n > 1:
        before, taken = _before_and_taken(n)
        window = n * np.arange(n - 1)[:, None] + before + np.arange(taken)
        places = np.append(window.ravel(), np.arange(before))
    i, j = places // max(n - 1, 1), 1 + places % max(n - 1, 1)
    pairs = np.maximum(i, j) * n + np.minimum(i, j)
    repeats = np.ones(pairs.size, bool)
    repeats[np.unique(pairs, return_index=True)[1]] = False
    pairs[repeats] = -1
    return np.append(pairs, np.arange(n) * (n + 1)) if itself else pairs


def pair_weights(square: Tensor, vectors: int, itself: bool) -> Tensor:
    """Returns the weights [out, columns] of the columns of `pair_products`.

    square: weights of all products [out, vectors ** 2], zero above the diagonal.
    """
    pairs = column_pairs(vectors, itself)
    return square[:, np.maximum(pairs, 0).tolist()] * square.new_tensor(pairs >= 0)


def _before_and_taken(vectors: int) -> tuple[int, int]:
    """Returns how many numbers of a chunk precede those that are taken, and how many are taken."""
    taken = vectors // 2
    return vectors - 1 - taken, taken
