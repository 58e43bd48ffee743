"""Selects the last of equal rows in an update, because a feed repeats hot rows."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64

Number = TypeVar("Number", bound=np.generic)


def last_of_equal(rows: I64, values: NDArray[Number]) -> tuple[I64, NDArray[Number]]:
    """Returns (distinct rows, ascending; the last values of each).

    rows: non-negative integers [n]. values: [n, ...]. Rows that are already distinct and ascending are
    returned as they are, like their values. The greatest row times n must fit in 62 bits.
    """
    if (rows[1:] > rows[:-1]).all():
        return rows, values
    # sort plain numbers with the position below the row: several times faster than an argsort of the rows
    bits = int(rows.size).bit_length()
    keys = np.left_shift(rows, bits, dtype=np.int64)
    keys |= np.arange(rows.size)
    keys.sort()
    distinct = keys >> bits
    last = np.ones(rows.size, bool)
    np.not_equal(distinct[1:], distinct[:-1], out=last[:-1])
    return distinct[last], values.take(keys[last] & ((1 << bits) - 1), axis=0)
