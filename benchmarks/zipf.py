"""Draws ranks by Zipf's law, from tables too large for numpy's generator of the discrete law."""

from __future__ import annotations

import numpy as np

from polyrec.models.schema.batch import I64


def zipf(random: np.random.Generator, rows: int, exponent: float, size: int) -> I64:
    """Returns ranks, int64 [size] below `rows`, with chances ~ (rank + 1)^-exponent.

    By the inverse of the continuous law.
    """
    u = random.random(size)
    if exponent == 0:
        ranks = u * rows
    elif exponent == 1:
        ranks = np.exp(u * np.log(rows + 1.0)) - 1
    else:
        ranks = (u * ((rows + 1.0) ** (1 - exponent) - 1) + 1) ** (1 / (1 - exponent)) - 1
    return np.minimum(ranks.astype(np.int64), rows - 1)
