"""Which way a batch's misses reach the device: measured costs in, a choice out.

Few misses are read by the kernel itself from pinned host memory; many may be faster gathered on the host and
copied. Where one becomes the other depends on machine and model, so it is measured while serving: batches of
like miss rate share a cost for each way, and the dearer way is tried again now and then.
"""

from __future__ import annotations

import numpy as np

DIRECT, COPIED = 0, 1
NAMES = ("direct", "copied")
"""`direct`: the kernel reads host memory. `copied`: gathered on the host, copied beside the popular part."""

EVERY = 64
"""One batch in so many goes the way that looks dearer, so that an estimate does not outlive its cause."""
KEPT = 0.9
EDGES = np.array([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7])
SIZES = 24


class TransferCosts:
    """Costs by size and miss rate of batches: seconds a look-up, forgotten by a tenth with each new one."""

    def __init__(self) -> None:
        shape = (SIZES, EDGES.size + 1)
        self._cost = np.full((*shape, 2), np.nan)
        self._chosen = np.zeros(shape, np.int64)

    def choose(self, lookups: int, misses: int) -> int:
        """DIRECT or COPIED. A way that was never taken is taken first."""
        at = _class(lookups, misses)
        self._chosen[at] += 1
        cost = self._cost[at]
        if np.isnan(cost).any():
            # nothing is known yet of a way that is still being timed: in turns
            unknown = np.flatnonzero(np.isnan(cost))
            return int(unknown[self._chosen[at] % unknown.size])
        best = int(cost[COPIED] < cost[DIRECT])
        return 1 - best if self._chosen[at] % EVERY == 0 else best

    def record(self, mode: int, lookups: int, misses: int, seconds: float) -> None:
        """What a batch took that went that way."""
        at = (*_class(lookups, misses), mode)
        one = seconds / max(lookups, 1)
        known = self._cost[at]
        self._cost[at] = one if np.isnan(known) else KEPT * known + (1 - KEPT) * one

    def cost(self, mode: int, lookups: int, misses: int) -> float:
        """Seconds that such a batch is expected to take; nan where none went that way."""
        return float(self._cost[(*_class(lookups, misses), mode)]) * lookups


def _class(lookups: int, misses: int) -> tuple[int, int]:
    rate = misses / max(lookups, 1)
    return min(lookups.bit_length(), SIZES - 1), int(np.searchsorted(EDGES, rate, side="right"))
