"""Zipf's law over a table's rows; numpy's generator has no largest rank and takes exponents above 1 only."""

from __future__ import annotations

import numpy as np

from polyrec.models.schema.batch import F64, I64


def zipf(random: np.random.Generator, rows: int, exponent: float, size: int) -> I64:
    """Returns ranks, int64 [size] below `rows`, with chances ~ (rank + 1)^-exponent.

    By the inverse of the continuous law, so without memory for each row of the table.
    """
    u = random.random(size)
    if exponent == 0:
        ranks = u * rows
    elif exponent == 1:
        ranks = np.exp(u * np.log(rows + 1.0)) - 1
    else:
        ranks = (u * ((rows + 1.0) ** (1 - exponent) - 1) + 1) ** (1 / (1 - exponent)) - 1
    return np.minimum(ranks.astype(np.int64), rows - 1)


def zipf_cdf(rows: int, exponent: float) -> F64:
    """Returns the chances of a rank up to each, float64 [rows], by the discrete law.

    `np.searchsorted(zipf_cdf(...), random.random(size))` draws ranks.
    """
    cdf: F64 = np.cumsum(np.arange(1, rows + 1) ** -exponent)
    cdf /= cdf[-1]
    return cdf
