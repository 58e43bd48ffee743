"""Predicts how long it takes to read a query's missing rows, from their number in each slow tier.

holding.py and dispatching.py use the prediction. For each tier, the time is linear in the misses, fitted by
least squares with exponential forgetting, times a factor that tracks the 99th percentile. Tiers are read in
parallel, so a query waits for the slowest.

The prediction is 0 before the first read, and decays within seconds unless new reads confirm it. Otherwise a
prediction that rejects every query with misses would last forever.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

from polyrec.planner.routing.query import Misses

MEMORY_S, UNCONFIRMED_S = 5.0, 2.0
"""Time constants of forgetting observations, and of decaying predictions that no read confirms."""
MIN_WEIGHT = 1e-3
MIN_S = 1e-6
TAIL_STEP = 0.1
TAIL_QUANTILE = 0.99
FIRST_TAIL, MAX_TAIL = log(2.0), log(20.0)
"""Logarithm of the ratio of tail to fitted line, initially and at most."""


class ReadSeconds(NamedTuple):
    """Seconds of a query's reads by tier, as in `Misses`. Values of tiers without misses are ignored."""

    disk: float = 0.0
    remote: float = 0.0


class ReadTimes:
    """The read times of all tiers."""

    __slots__ = ("_tiers",)

    def __init__(self) -> None:
        self._tiers = tuple(TierReads() for _ in Misses._fields)

    def observe(self, misses: Misses, took_s: ReadSeconds) -> None:
        """Records the finished reads of one query."""
        for tier, count, seconds in zip(self._tiers, misses, took_s, strict=True):
            if count:
                tier.observe(count, seconds)

    def tail_s(self, misses: Misses) -> float:
        """Returns the 99th percentile in seconds until all misses have been read."""
        return max(
            (tier.tail_s(count) for tier, count in zip(self._tiers, misses, strict=True) if count),
            default=0.0,
        )

    def tick(self, passed_s: float) -> None:
        """Forgets, passed_s after the last tick."""
        for tier in self._tiers:
            if tier.weight:
                tier.tick(passed_s)


class TierReads:
    """The linear fit of one tier, from sums over observations (misses, seconds) with decaying weights."""

    __slots__ = (
        "_confirmed",
        "_miss_s",
        "_misses",
        "_products",
        "_read_s",
        "_seconds",
        "_squares",
        "_tail",
        "weight",
    )

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.weight = self._misses = self._squares = self._seconds = self._products = 0.0
        self._read_s = self._miss_s = 0.0
        self._tail = FIRST_TAIL
        self._confirmed = False

    def observe(self, misses: int, seconds: float) -> None:
        """Records the read of a number of misses."""
        expected_s = self._read_s + self._miss_s * misses
        if self.weight:
            is_longer = seconds > expected_s * exp(self._tail)
            self._tail += TAIL_STEP * (TAIL_QUANTILE if is_longer else TAIL_QUANTILE - 1)
            self._tail = min(max(self._tail, 0.0), MAX_TAIL)
        self.weight += 1.0
        self._misses += misses
        self._squares += misses * misses
        self._seconds += seconds
        self._products += misses * seconds
        self._confirmed = True
        self._fit()

    def tail_s(self, misses: int) -> float:
        """Returns the 99th percentile in seconds of reading `misses` rows; 0 if no read was observed."""
        return (self._read_s + self._miss_s * misses) * exp(self._tail)

    def tick(self, passed_s: float) -> None:
        """Forgets, passed_s after the last tick."""
        kept = exp(-passed_s / MEMORY_S)
        self.weight *= kept
        self._misses *= kept
        self._squares *= kept
        if not self._confirmed:
            kept *= exp(-passed_s / UNCONFIRMED_S)
        self._seconds *= kept
        self._products *= kept
        self._confirmed = False
        if self.weight < MIN_WEIGHT:
            self._forget()
        else:
            self._fit()

    def _fit(self) -> None:
        """Fits seconds = read_s + miss_s * misses, neither negative."""
        mean, mean_s = self._misses / self.weight, self._seconds / self.weight
        variance = self._squares / self.weight - mean * mean
        slope = 0.0
        if variance > 0.01 * mean * mean:
            slope = (self._products / self.weight - mean * mean_s) / variance
        self._miss_s = min(max(slope, 0.0), mean_s / mean)
        self._read_s = max(mean_s - self._miss_s * mean, MIN_S)
