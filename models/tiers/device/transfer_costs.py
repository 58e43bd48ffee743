"""Chooses how a batch's misses reach the device, from measured costs.

Few misses are best read by the kernel from pinned host memory; many may be faster gathered on the host and
copied. The crossover depends on machine and model, so it is measured while serving. Batches of similar size
and miss rate share a cost per mode, and the slower mode is retried regularly.
"""

from __future__ import annotations

import numpy as np

DIRECT, COPIED = 0, 1
NAMES = ("direct", "copied")
"""`direct`: the kernel reads host memory. `copied`: gathered on the host and copied while hits are pooled."""

EVERY = 64
"""One batch in this many uses the slower mode, so that its estimate stays current."""
KEPT = 0.9
EDGES = np.array([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7])
SIZES = 24


class TransferCosts:
    """Keeps moving averages, with weight KEPT of the past, of the seconds per lookup by batch size and
    miss rate.
    """

    def __init__(self) -> None:
        shape = (SIZES, EDGES.size + 1)
        self._cost = np.full((*shape, 2), np.nan)
        self._chosen = np.zeros(shape, np.int64)

    def choose(self, lookups: int, misses: int) -> int:
        """Returns DIRECT or COPIED, preferring modes without a measurement; DIRECT if nothing misses."""
        if not misses:
            return DIRECT
        at = _class(lookups, misses)
        self._chosen[at] += 1
        cost = self._cost[at]
        if np.isnan(cost).any():
            # measurements may be pending, so alternate between unmeasured modes
            unknown = np.flatnonzero(np.isnan(cost))
            return int(unknown[self._chosen[at] % unknown.size])
        best = int(cost[COPIED] < cost[DIRECT])
        return 1 - best if self._chosen[at] % EVERY == 0 else best

    def record(self, mode: int, lookups: int, misses: int, seconds: float) -> None:
        """Records the time that a batch took in one mode."""
        at = (*_class(lookups, misses), mode)
        one = seconds / max(lookups, 1)
        known = self._cost[at]
        self._cost[at] = one if np.isnan(known) else KEPT * known + (1 - KEPT) * one

    def cost(self, mode: int, lookups: int, misses: int) -> float:
        """Returns the expected seconds of such a batch; NaN if the mode has no measurement."""
        return float(self._cost[(*_class(lookups, misses), mode)]) * lookups


def _class(lookups: int, misses: int) -> tuple[int, int]:
    rate = misses / max(lookups, 1)
    return min(lookups.bit_length(), SIZES - 1), int(np.searchsorted(EDGES, rate, side="right"))
