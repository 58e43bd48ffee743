"""Plans what to measure, in which order, and how often (pure code).

Sizes double; sizes in between only test the model. A path's time is divided so that small batches have enough
samples for a percentile, and large ones at least a few. Rounds interleave paths and sizes, so that a
disturbance of some seconds affects all of them a little rather than one of them a lot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from polyrec.planner.profile import ProfileError

ROUNDS = 5
MAX_SAMPLES = 1500
EVICTED_SHARE = 0.15
MAX_EVICTED = 20


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive batches of one size of one path. evicted: whether caches are emptied before each."""

    path: str
    rows: int
    round: int
    batches: int
    evicted: bool = False

    @property
    def key(self) -> str:
        return f"{'evicted' if self.evicted else 'warm'} {self.rows} {self.round}"


def ladder(largest: int) -> tuple[list[int], list[int]]:
    """Returns (sizes to fit, sizes to test): doublings up to `largest`, and the geometric means between
    them.
    """
    if largest < 1:
        raise ProfileError(f"the largest batch must have at least 1 row, not {largest}")
    fitted = [1 << i for i in range(largest.bit_length()) if 1 << i <= largest]
    if fitted[-1] != largest:
        fitted.append(largest)
    between = [round((a * b) ** 0.5) for a, b in pairwise(fitted)]
    return fitted, sorted({b for b in between if b not in fitted})


def evicted_sizes(largest: int) -> list[int]:
    """Returns the sizes to measure with empty caches: every third doubling and the largest."""
    return sorted({1 << i for i in range(0, largest.bit_length(), 3) if 1 << i <= largest} | {largest})


def batches(sizes: Sequence[int], batch_s: NDArray[np.float64], budget_s: float) -> dict[int, int]:
    """Divides the budget among sizes: batches in inverse proportion to the square root of a batch's time.

    batch_s: float64 [sizes], seconds per batch. There is at least one batch per round.
    """
    low, high = 0.0, 1e9
    counts = np.full(len(sizes), ROUNDS)
    for _ in range(80):
        scale = (low * high) ** 0.5 if low else high / 2
        tried = np.clip(scale / np.sqrt(batch_s), ROUNDS, MAX_SAMPLES).astype(np.int64)
        if float((tried * batch_s).sum()) <= budget_s:
            low, counts = scale, tried
        else:
            high = scale
    return {rows: int(n) for rows, n in zip(sizes, counts, strict=True)}


def blocks(
    scouted: Mapping[str, Mapping[int, float]], largest: int, budget_s: float, seed: int
) -> list[Block]:
    """Returns all blocks of all paths, round by round, in a seeded random order of sizes and paths.

    scouted: path -> rows -> seconds of one batch, at a few sizes.
    """
    fitted, unseen = ladder(largest)
    sizes = sorted(fitted + unseen)
    random = np.random.default_rng(seed)
    wanted: dict[str, dict[int, int]] = {}
    emptied: dict[str, dict[int, int]] = {}
    for path, known in scouted.items():
        at = sorted(known)
        seconds = np.interp(sizes, at, [known[r] for r in at])
        wanted[path] = batches(sizes, seconds, budget_s)
        few = evicted_sizes(largest)
        shares = batches(few, np.interp(few, at, [known[r] for r in at]), EVICTED_SHARE * budget_s)
        emptied[path] = {rows: min(n, MAX_EVICTED) for rows, n in shares.items()}
    order: list[Block] = []
    for k in range(ROUNDS):
        for rows in random.permutation(sizes).tolist():
            for path in random.permutation(list(wanted)).tolist():
                order.append(Block(path, rows, k, -(-wanted[path][rows] // ROUNDS)))
    for rows in evicted_sizes(largest):
        order += [Block(path, rows, 0, emptied[path][rows], evicted=True) for path in wanted]
    return order
