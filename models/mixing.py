"""Defines the 64-bit mixing function behind all hashes of values, identical on all machines and versions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]


def mix(x: U64) -> U64:
    """Applies splitmix64's finalizer (Steele, Lea and Flood, 2014): each input bit affects every output
    bit.
    """
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
