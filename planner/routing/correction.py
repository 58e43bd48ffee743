"""Corrections of the latency models by what execution really takes, one lane at a time.

Observed seconds go in, factors on the profiled median and tail come out. Two speeds: the *lane's* factor is
the median of its last few residuals once that is more than noise, so a lane that slows down tenfold (a
neighbour, heat) is believed after two or three batches, and so is its recovery; each *path's* own bias
follows slowly, by a part of the difference and never by more than a step, its tail by quantile tracking (a
step up for each value above, down for each below, in the quantile's proportion), so that a single outlier
moves neither. Near its goal the bias takes small steps: of paths a few per cent apart the faster one is to
be known.
"""

from __future__ import annotations

from math import exp, log

RECENT = 3
NOISE = 0.3
"""The lane's factor stays 1 while the last residuals' median, a logarithm, is below this and the tail's.
That a lane became faster than its profile is believed slowly only, path by path."""
BIAS_STEP, BIAS_WEIGHT = 0.01, 0.03
NEW, NEW_STEP = 20, 0.2
"""A path's first batches, and the step after the first of them."""
LEAST_S = 1e-7
TAIL_STEP = 0.05
TAIL_QUANTILE = 0.99
MOST_BIAS = log(4.0)
MOST_TAIL = log(3.0)
LEAST_TAIL = log(0.9)


class Correction:
    """Factors of one lane. median, tail: by path index, what to multiply the profile by."""

    __slots__ = ("_bias", "_recent", "_seen", "_shared", "_spread", "median", "tail")

    def __init__(self, paths: int) -> None:
        self.median = [1.0] * paths
        self.tail = [1.0] * paths
        self._bias = [0.0] * paths
        self._spread = [0.0] * paths
        self._seen = [0] * paths
        self._recent = [0.0] * RECENT
        self._shared = 0.0

    @property
    def factor(self) -> float:
        """How many times slower than profiled the lane is at the moment."""
        return exp(self._shared)

    def observe(self, path: int, took_s: float, median_s: float, tail_s: float) -> None:
        """One batch took `took_s`; the profile says median_s and tail_s."""
        residual = log(took_s / median_s) if took_s > LEAST_S else log(LEAST_S / median_s)
        bias = self._bias[path]
        recent = self._recent
        recent.append(residual - bias)
        del recent[0]
        shared = sorted(recent)[RECENT // 2]
        spread = log(tail_s / median_s)
        if shared < NOISE or shared < spread:
            shared = 0.0
        was, self._shared = self._shared, shared
        off = residual - shared - bias
        # What is new of a path is believed sooner: one that has not been tried would look fast until it is.
        seen = self._seen[path]
        self._seen[path] = seen + 1
        if seen < NEW:
            most, weight = NEW_STEP / (seen + 2), 1 / (seen + 2)
        else:
            most, weight = BIAS_STEP, BIAS_WEIGHT
        step = weight * off
        bias += most if step > most else -most if step < -most else step
        self._bias[path] = min(MOST_BIAS, max(-MOST_BIAS, bias))
        above = off - spread > self._spread[path]
        step = TAIL_STEP * (TAIL_QUANTILE if above else TAIL_QUANTILE - 1)
        self._spread[path] = min(MOST_TAIL, max(LEAST_TAIL, self._spread[path] + step))
        if shared == was:
            self._factor(path)
        else:
            for p in range(len(self._bias)):
                self._factor(p)

    def _factor(self, path: int) -> None:
        self.median[path] = factor = exp(self._shared + self._bias[path])
        self.tail[path] = factor * exp(self._spread[path])

    def forget(self, weight: float) -> None:
        """Nothing was heard for a while: that much of what is thought of the lane is kept."""
        self._shared *= weight
        self._recent = [self._shared] * RECENT
        for p in range(len(self._bias)):
            self._bias[p] *= weight
            self._spread[p] *= weight
            self._factor(p)

    def reset(self) -> None:
        """Forgets that the lane was slow: it was started anew."""
        self._recent = [0.0] * RECENT
        self._shared = 0.0
        for p in range(len(self._bias)):
            self._factor(p)
