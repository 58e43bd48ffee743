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

NOISE = 0.3
"""The lane's factor stays 1 while the last residuals' median, a logarithm, is below this and the tail's.
That a lane became faster than its profile is believed slowly only, path by path."""
BIAS_STEP, BIAS_WEIGHT = 0.01, 0.03
NEW, NEW_STEP = 20, 0.2
"""A path's first batches, and the step after the first of them."""
LEAST_S = 1e-7
TAIL_STEP = 0.05
TAIL_QUANTILE = 0.99
STEP_UP, STEP_DOWN = TAIL_STEP * TAIL_QUANTILE, TAIL_STEP * (TAIL_QUANTILE - 1)
MOST_BIAS = log(4.0)
MOST_TAIL = log(3.0)
LEAST_TAIL = log(0.9)


class Correction:
    """Factors of one lane. median, tail: by path index, what to multiply the profile by."""

    __slots__ = ("_known", "_recent", "_shared", "median", "tail")

    def __init__(self, paths: int) -> None:
        self.median = [1.0] * paths
        self.tail = [1.0] * paths
        self._known = [(0.0, 0.0, 0)] * paths
        """By path: its bias, by how much its tail is wider than profiled (both logarithms), batches seen."""
        self._recent = (0.0, 0.0, 0.0)
        self._shared = 0.0

    @property
    def factor(self) -> float:
        """How many times slower than profiled the lane is at the moment."""
        return exp(self._shared)

    def observe(self, path: int, took_s: float, median_s: float, spread: float) -> None:
        """One batch took `took_s`; the profile says median_s, and the logarithm of its tail over that."""
        bias, wider, seen = self._known[path]
        residual = log((took_s if took_s > LEAST_S else LEAST_S) / median_s)
        _, before, last = self._recent
        this = residual - bias
        self._recent = before, last, this
        low, high = (before, last) if before < last else (last, before)
        shared = low if this < low else high if this > high else this  # the median of the three
        if shared < NOISE or shared < spread:
            shared = 0.0
        off = residual - shared - bias
        # What is new of a path is believed sooner: one that has not been tried would look fast until it is.
        if seen < NEW:
            most, weight = NEW_STEP / (seen + 2), 1 / (seen + 2)
        else:
            most, weight = BIAS_STEP, BIAS_WEIGHT
        step = weight * off
        bias += most if step > most else -most if step < -most else step
        bias = MOST_BIAS if bias > MOST_BIAS else -MOST_BIAS if bias < -MOST_BIAS else bias
        wider += STEP_UP if off - spread > wider else STEP_DOWN
        wider = MOST_TAIL if wider > MOST_TAIL else LEAST_TAIL if wider < LEAST_TAIL else wider
        self._known[path] = bias, wider, seen + 1
        if shared == self._shared:
            self.median[path] = factor = exp(shared + bias)
            self.tail[path] = factor * exp(wider)
        else:
            self._shared = shared
            self._factors()

    def _factors(self) -> None:
        for path, (bias, wider, _) in enumerate(self._known):
            self.median[path] = factor = exp(self._shared + bias)
            self.tail[path] = factor * exp(wider)

    def forget(self, weight: float) -> None:
        """Nothing was heard for a while: that much of what is thought of the lane is kept."""
        self._shared *= weight
        self._recent = (self._shared, self._shared, self._shared)
        self._known = [(bias * weight, wider * weight, seen) for bias, wider, seen in self._known]
        self._factors()

    def reset(self) -> None:
        """Forgets that the lane was slow: it was started anew."""
        self._recent = (0.0, 0.0, 0.0)
        self._shared = 0.0
        self._factors()
