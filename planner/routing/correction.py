"""Corrections of the latency models by what execution really takes, one lane at a time.

Observed seconds go in, factors on the profiled median and tail come out. Two speeds: the *lane's* factor is
the median of its last few residuals once that is more than noise, so a lane that slows down tenfold (a
neighbour, heat) is believed after two or three batches, and so is its recovery; each *path's* own bias
and tail on that lane follow slowly by quantile tracking (a step up for each value above, down for each
below, in the quantile's proportion), so that a single outlier moves neither.
"""

from __future__ import annotations

from math import exp, log

RECENT = 3
NOISE = 0.3
"""The lane's factor stays 1 while the last residuals' median, a logarithm, is below this and the tail's.
That a lane became faster than its profile is believed slowly only, path by path."""
BIAS_STEP = 0.01
TAIL_STEP = 0.05
TAIL_QUANTILE = 0.99
MOST_BIAS = log(4.0)
MOST_TAIL = log(3.0)
LEAST_TAIL = log(0.9)


class Correction:
    """Factors of one lane. median, tail: by path index, what to multiply the profile by."""

    __slots__ = ("_bias", "_recent", "_shared", "_spread", "median", "tail")

    def __init__(self, paths: int) -> None:
        self.median = [1.0] * paths
        self.tail = [1.0] * paths
        self._bias = [0.0] * paths
        self._spread = [0.0] * paths
        self._recent = [0.0] * RECENT
        self._shared = 0.0

    @property
    def factor(self) -> float:
        """How many times slower than profiled the lane is at the moment."""
        return exp(self._shared)

    def observe(self, path: int, took_s: float, median_s: float, tail_s: float) -> None:
        """One batch took `took_s`; the profile says median_s and tail_s."""
        residual = log(max(took_s, 1e-7) / median_s)
        recent = self._recent
        recent.append(residual - self._bias[path])
        del recent[0]
        shared = sorted(recent)[RECENT // 2]
        spread = log(tail_s / median_s)
        if shared < max(NOISE, spread):
            shared = 0.0
        self._shared = shared
        off = residual - shared - self._bias[path]
        if off:
            step = BIAS_STEP if off > 0 else -BIAS_STEP
            self._bias[path] = min(MOST_BIAS, max(-MOST_BIAS, self._bias[path] + step))
        above = off - spread > self._spread[path]
        step = TAIL_STEP * (TAIL_QUANTILE if above else TAIL_QUANTILE - 1)
        self._spread[path] = min(MOST_TAIL, max(LEAST_TAIL, self._spread[path] + step))
        for p, bias in enumerate(self._bias):
            self.median[p] = factor = exp(shared + bias)
            self.tail[p] = factor * exp(self._spread[p])

    def forget(self, weight: float) -> None:
        """Nothing was heard for a while: that much of what is thought of the lane is kept."""
        self._shared *= weight
        self._recent = [self._shared] * RECENT
        for p in range(len(self._bias)):
            self._bias[p] *= weight
            self._spread[p] *= weight
            self.median[p] = factor = exp(self._shared + self._bias[p])
            self.tail[p] = factor * exp(self._spread[p])

    def reset(self) -> None:
        """Forgets that the lane was slow: it was started anew."""
        self._recent = [0.0] * RECENT
        self._shared = 0.0
        for p, bias in enumerate(self._bias):
            self.median[p] = exp(bias)
            self.tail[p] = exp(bias + self._spread[p])
