"""Estimates the loss of quality without labels, from two versions' answers to the same requests.

If the stable version's probabilities p are right, the log-loss of the canary's probabilities s is higher by
the Kullback-Leibler divergence KL(p || s) on average, so its information gain (1 - NE) is lower by

    mean over rows of KL(p || s)  /  H(mean p)            H: entropy of a binary event

Equal versions give exactly 0, whatever the sample. The estimate measures disagreement in units of quality and
assumes that the stable version is right, so a canary that is right where both differ gets a positive loss
too. Rows of one request are correlated, so the standard deviation is that of a ratio of sums over requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from polyrec.models.schema.batch import F32

CLIP = 1e-7
"""Scores are clipped to at least this distance from 0 and 1."""


@dataclass(slots=True)
class PairRecords:
    """Requests that both versions answered since the last comparison.

    pairs: (the stable version's scores, the canary's), float32 [rows] each. failed: requests that the canary
    failed to answer. missed: comparisons that ended without a verdict on the canary: rejected or late, as
    there was no time for them. spent_s: seconds that comparisons took from the event loop and stable lanes.
    """

    pairs: list[tuple[F32, F32]] = field(default_factory=list)
    failed: int = 0
    missed: int = 0
    spent_s: float = 0.0


@dataclass(slots=True)
class PairSums:
    """Sums over requests that both versions answered.

    rows, divergence: sums over all requests. probability: sum of the stable version's scores. squares: sums
    over requests of divergence squared, divergence times rows, and rows squared.
    """

    requests: int = 0
    failed: int = 0
    missed: int = 0
    rows: float = 0.0
    divergence: float = 0.0
    probability: float = 0.0
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def add(self, records: PairRecords) -> None:
        """Adds requests; in `records`, those with a score of the canary that is not finite become failed."""
        finite = [pair for pair in records.pairs if np.isfinite(pair[1]).all()]
        records.failed += len(records.pairs) - len(finite)
        records.pairs = finite
        self.failed += records.failed
        self.missed += records.missed
        for stable, canary in finite:
            divergence, rows = float(divergences(stable, canary).sum()), float(stable.size)
            divergence2, cross, rows2 = self.squares
            self.requests += 1
            self.rows += rows
            self.divergence += divergence
            self.probability += float(stable.sum())
            self.squares = divergence2 + divergence**2, cross + divergence * rows, rows2 + rows**2

    def merge(self, other: PairSums) -> None:
        """Adds the sums of other requests."""
        self.requests += other.requests
        self.failed += other.failed
        self.missed += other.missed
        self.rows += other.rows
        self.divergence += other.divergence
        self.probability += other.probability
        divergence2, cross, rows2 = (a + b for a, b in zip(self.squares, other.squares, strict=True))
        self.squares = divergence2, cross, rows2


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """Information gain that the canary is expected to lose, and its standard deviation."""

    value: float
    deviation: float

    def low(self, z: float) -> float:
        """Lower bound, z deviations below."""
        return max(0.0, self.value - z * self.deviation)

    def high(self, z: float) -> float:
        """Upper bound, z deviations above."""
        return self.value + z * self.deviation


def expected_loss(sums: PairSums) -> ExpectedLoss | None:
    """Returns the expected loss; None with fewer than two requests, or if all probabilities are 0 or 1."""
    if sums.requests < 2 or not sums.rows:
        return None
    base = min(max(sums.probability / sums.rows, CLIP), 1 - CLIP)
    entropy = -base * math.log(base) - (1 - base) * math.log1p(-base)
    mean = sums.divergence / sums.rows
    divergence2, cross, rows2 = sums.squares
    spread = max(0.0, divergence2 - 2 * mean * cross + mean**2 * rows2)
    deviation = math.sqrt(spread * sums.requests / (sums.requests - 1)) / sums.rows
    return ExpectedLoss(mean / entropy, deviation / entropy)


def divergences(stable: F32, canary: F32) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns the KL divergence of each row's probability, float64 [rows], in nats."""
    p = stable.astype(np.float64).clip(CLIP, 1 - CLIP)
    s = canary.astype(np.float64).clip(CLIP, 1 - CLIP)
    return np.asarray(p * np.log(p / s) + (1 - p) * np.log((1 - p) / (1 - s)))
