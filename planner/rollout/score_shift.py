"""Compares the score distributions of two versions by their population stability index (PSI).

    PSI = sum over bins of (p - q) ln(p / q)      p: share of the canary's scores in a bin, q: of the stable's

The index of two samples of one distribution is above 0, and more so for small samples. Here it comes with its
bias and standard deviation, so that a shift is called one only if it exceeds what chance explains. Rows of
one request are alike (one user), so requests are the sampling units: the covariance of the shares is that of
a cluster sample, and the index's distribution under equality is Rao and Scott's (1981, weighted chi-squared),
which for independent rows is the chi-squared law of Yurdakul and Naranjo (2020). A real shift adds the
variance of the delta method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from polyrec.models.schema.batch import F32, F64

BINS = 10
SMOOTHING = 0.5
"""Added to each bin's count: an empty bin would make the index infinite."""


def bin_edges(scores: F32) -> F64:
    """Returns the edges that cut scores [n] into BINS bins of equal counts: float64 [BINS - 1] or fewer."""
    return np.unique(np.quantile(scores.astype(np.float64), np.arange(1, BINS) / BINS))


@dataclass(slots=True)
class ScoreCounts:
    """Scores by bin, of requests with several rows each.

    counts: float64 [bins]. products: float64 [bins, bins], the sum over requests of the outer product of a
    request's counts with themselves.
    """

    counts: F64
    products: F64
    requests: int = 0

    @classmethod
    def empty(cls, bins: int) -> Self:
        return cls(np.zeros(bins), np.zeros((bins, bins)))

    def add(self, scores: Sequence[F32], edges: F64) -> None:
        """Counts requests. scores: float32 [rows] of each request."""
        if not scores:
            return
        bins = self.counts.size
        sizes = [request.size for request in scores]
        request = np.repeat(np.arange(len(sizes)), sizes)
        found = np.searchsorted(edges, np.concatenate(scores), side="right")
        table = np.bincount(request * bins + found, minlength=len(sizes) * bins).reshape(-1, bins)
        by_request = table.astype(np.float64)
        self.counts += by_request.sum(0)
        self.products += by_request.T @ by_request
        self.requests += len(sizes)

    def merge(self, other: ScoreCounts) -> None:
        """Adds other counts."""
        self.counts += other.counts
        self.products += other.products
        self.requests += other.requests

    @property
    def shares(self) -> F64:
        """Smoothed share of each bin."""
        smoothed = self.counts + SMOOTHING
        return np.asarray(smoothed / smoothed.sum())

    def covariance(self) -> F64:
        """Covariance of the shares, requests being drawn independently. Needs two requests."""
        total = self.counts.sum()
        p = self.counts / total
        weighted = self.products.sum(1)
        spread = self.products - np.outer(p, weighted) - np.outer(weighted, p)
        spread += np.outer(p, p) * self.products.sum()
        return np.asarray(spread * (self.requests / (self.requests - 1)) / total**2)


@dataclass(frozen=True, slots=True)
class ScoreShift:
    """The index of two samples. bias: its mean for equal distributions. deviation: standard deviation."""

    psi: float
    bias: float
    deviation: float

    def low(self, z: float) -> float:
        """Lower bound of the index of the distributions, z deviations below the unbiased estimate."""
        return max(0.0, self.psi - self.bias - z * self.deviation)

    def high(self, z: float) -> float:
        """Upper bound, z deviations above the unbiased estimate."""
        return max(0.0, self.psi - self.bias) + z * self.deviation


def score_shift(stable: ScoreCounts, canary: ScoreCounts) -> ScoreShift | None:
    """Returns the index of the canary's scores against the stable's; None with too few requests."""
    if min(stable.requests, canary.requests) < 2:
        return None
    q, p = stable.shares, canary.shares
    log_ratio = np.log(p / q)
    psi = float(((p - q) * log_ratio).sum())
    stable_covariance, canary_covariance = stable.covariance(), canary.covariance()
    scale = 1 / np.sqrt((p + q) / 2)
    null = (stable_covariance + canary_covariance) * np.outer(scale, scale)
    slope_p, slope_q = log_ratio + 1 - q / p, 1 - log_ratio - p / q
    shifted = float(slope_p @ canary_covariance @ slope_p + slope_q @ stable_covariance @ slope_q)
    return ScoreShift(
        psi, float(np.trace(null)), math.sqrt(2 * float((null * null).sum()) + max(0.0, shifted))
    )
