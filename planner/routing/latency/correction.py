"""Corrects the latency models of one lane by observed service times.

The result is a factor on the profiled median and tail of each path. Each state variable is the logarithm of a
ratio of observed to profiled seconds:

    bias         per path: an EWMA with clipped steps, so that outliers hardly move it
    shift        per lane: the median of its last three residuals, 0 while that is within the noise. If the
                 lane slows down tenfold (noisy neighbor, heat), the shift follows after two batches;
                 likewise when the lane recovers
    tail_bias    per path: its tail relative to the profiled tail, by quantile tracking

Five rules keep a disturbance from affecting predictions for longer than it lasts:

    - State that new batches do not confirm decays: shift with time constant SHIFT_MEMORY_S, tail_bias with
      TAIL_MEMORY_S.
    - The bias of a path that is not executed follows the executed paths at each tick (`PathSpeeds`).
      Otherwise paths measured at different core speeds would be compared, and a path whose bias decays to its
      profile would seem faster than paths measured in the server. A tick without any batch leaves the bias of
      paths executed in the last one to two windows alone, so that it stays an EWMA if batches are rare.
    - No prediction exceeds what was observed in the last one to two windows: the biased tail plus MARGIN
      times the longest delay of any batch on the lane, and for a path with ENOUGH batches MARGIN times its
      slowest.
    - The first FIRST_BATCHES batches of a path on a lane are ignored if they are slow, as libraries load and
      caches fill.
    - Values derived once per tick (capacity, prices, batch sizes) use the smallest shift since the last tick.
      Otherwise a delay of a few batches just before a tick would affect the whole following tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from polyrec.planner.routing.latency.latency_table import LatencyTable
from polyrec.planner.routing.latency.path_speeds import PathSpeeds

NOISE = 0.3
"""The shift stays 0 while the median of the last residuals is below this and below the profiled tail's."""
BIAS_STEP, BIAS_WEIGHT = 0.01, 0.03
MAX_OFF = 0.3
"""Bound on a batch's deviation from the bias when paths are compared."""
NEW, NEW_STEP = 20, 0.2
"""Number of a path's first batches with larger steps, up to NEW_STEP / 2, as untried paths look too fast."""
FIRST_BATCHES = 2
"""Number of a path's first batches on a lane that are ignored if they are slow."""
MIN_S = 1e-7
TAIL_STEP = 0.05
TAIL_QUANTILE = 0.99
STEP_UP, STEP_DOWN = TAIL_STEP * TAIL_QUANTILE, TAIL_STEP * (TAIL_QUANTILE - 1)
MAX_BIAS = log(4.0)
MAX_TAIL = log(3.0)
MIN_TAIL = log(0.9)
SHIFT_MEMORY_S, TAIL_MEMORY_S, SEEN_MEMORY_S = 0.5, 3.0, 2.5
"""Time constants of exponential decay. SEEN: of the number of a path's batches, while it has no new ones."""
WINDOW_S = 1.5
"""Length of a window; maxima cover the current and the previous window."""
MARGIN = 1.2
ENOUGH = 5
"""Number of a path's batches in both windows that is required for their slowest to bound its tail."""


def _bounded(value: float, most: float) -> float:
    """Clips a value to [-most, most]."""
    return most if value > most else -most if value < -most else value


class Correction:
    """Correction factors of one lane, by path index.

    median, tail: factors on the profiled median and tail, from the begin of a batch to its end.
    undisturbed: factor on the profiled median, with the smallest shift between the last two ticks and without
        waits for a CPU.
    cautious_tail: factor on the profiled tail for a batch that must not be late.
    waiting: share of the time from begin to end in which the lane waits for a CPU.
    quickest: shortest observed service time over the profiled median; at most 1, as the profiler observed
        the median.
    """

    __slots__ = (
        "_batches", "_begun_s", "_bias", "_biased", "_count", "_count_before",
        "_delay_before_s", "_delay_s", "_latencies", "_min_shift", "_recent", "_seen", "_shift", "_slowest",
        "_slowest_before", "_speeds", "_tail_bias", "_ticked_count", "_ticked_error", "_unproven", "_usual",
        "cautious_tail", "median", "quickest", "tail", "undisturbed", "waiting",
    )  # fmt: skip

    def __init__(self, latencies: Sequence[LatencyTable]) -> None:
        """Starts without corrections. latencies: by path index."""
        paths = len(latencies)
        self.waiting = 0.0
        self.median = [1.0] * paths
        self.undisturbed = [1.0] * paths
        self.tail = [1.0] * paths
        self.cautious_tail = [latency.safe_factor for latency in latencies]
        self.quickest = [1.0] * paths
        self._latencies = latencies
        self._usual = [(table.tail[1], exp(-table.spread[1]), table.safe_factor) for table in latencies]
        """Profiled tail, median over tail, and safe_factor of a usual batch, by path."""
        self._bias, self._tail_bias, self._seen = [0.0] * paths, [0.0] * paths, [0.0] * paths
        self._biased = [1.0] * paths  # exp(bias)
        self._unproven = [FIRST_BATCHES] * paths
        self._begun_s = 0.0
        self._batches = 0  # since the last tick
        self._recent = (0.0, 0.0, 0.0)
        self._shift = 0.0
        self._min_shift = 0.0  # since the last tick
        self._count, self._count_before = [0] * paths, [0] * paths
        self._speeds = PathSpeeds([latency.variance for latency in latencies])
        self._ticked_count, self._ticked_error = [0] * paths, [0.0] * paths  # since the last tick
        self._slowest, self._slowest_before = [0.0] * paths, [0.0] * paths
        """Largest ratio of observed to profiled seconds by path, in this and the previous window."""
        self._delay_s = self._delay_before_s = 0.0
        """Longest delay of any batch beyond its biased tail, in this and the previous window."""

    @property
    def factor(self) -> float:
        """Current slowdown of the lane; 1 is its usual speed, 2 means twice as long."""
        return exp(self._shift)

    def observe(self, path: int, rows: int, took_s: float) -> None:
        """Updates the factors by one batch. took_s: its service time in seconds."""
        latency = self._latencies[path]
        median_s, spread = latency.median[rows], latency.spread[rows]
        ratio = (took_s if took_s > MIN_S else MIN_S) / median_s
        if ratio < self.quickest[path]:
            self.quickest[path] = ratio
        bias = self._bias[path]
        residual = log(ratio)
        beyond = residual - bias
        if self._unproven[path]:
            self._unproven[path] -= 1
            if beyond > NOISE and beyond > spread:
                return
        self._batches += 1
        self._count[path] += 1
        if ratio > self._slowest[path]:
            self._slowest[path] = ratio
        longer = False
        if beyond > spread:
            delay_s = took_s - latency.tail[rows] * self._biased[path]
            longer = delay_s > self._delay_s
            if longer:
                self._delay_s = delay_s
        shift = self._observe_residual(beyond, spread)
        off = beyond - shift
        self._ticked_count[path] += 1
        self._ticked_error[path] += bias + _bounded(off, MAX_OFF)
        self._learn(path, off, spread)
        if shift == self._shift and not longer:
            self._update(path)
        else:
            self._shift = shift
            for p in range(len(self.median)):
                self._update(p)

    def _observe_residual(self, residual: float, spread: float) -> float:
        """Adds a residual and returns the new shift: the median of the last three, 0 within the noise."""
        _, before, last = self._recent
        self._recent = before, last, residual
        low, high = (before, last) if before < last else (last, before)
        shift = low if residual < low else high if residual > high else residual
        if shift < NOISE or shift < spread:
            shift = 0.0
        if shift < self._min_shift:
            self._min_shift = shift
        return shift

    def _learn(self, path: int, off: float, spread: float) -> None:
        """Updates a path's bias and tail by a batch. off: the batch's deviation from bias and shift."""
        # larger steps for a path's first batches, as an untried path looks too fast
        seen = self._seen[path]
        if seen < NEW:
            most, weight = NEW_STEP / (seen + 2), 1 / (seen + 2)
        else:
            most, weight = BIAS_STEP, BIAS_WEIGHT
        self._seen[path] = seen + 1
        bias = _bounded(self._bias[path] + _bounded(weight * off, most), MAX_BIAS)
        self._bias[path], self._biased[path] = bias, exp(bias)
        tail_bias = self._tail_bias[path]
        tail_bias += STEP_UP if off - spread > tail_bias else STEP_DOWN
        self._tail_bias[path] = min(max(tail_bias, MIN_TAIL), MAX_TAIL)

    def _update(self, path: int) -> None:
        """Recomputes a path's factors from its biases and the shift, bounded by the observed maxima.

        A factor on the median times `to_median` is the same time as a factor on the tail.
        """
        usual_s, to_median, safe = self._usual[path]
        biased = self._biased[path]
        shifted = biased * exp(self._shift)
        tail = shifted * exp(self._tail_bias[path])
        longest = biased + MARGIN * max(self._delay_s, self._delay_before_s) / usual_s
        median = min(shifted, longest / to_median)
        cautious = min(tail, longest) * safe
        if self._count[path] + self._count_before[path] >= ENOUGH:
            slowest = MARGIN * max(self._slowest[path], self._slowest_before[path]) * to_median
            longest, cautious = min(longest, slowest), min(cautious, slowest)
        tail = max(min(tail, longest), median * to_median)
        at_work = 1 - self.waiting
        self.median[path] = median / at_work
        self.tail[path] = tail / at_work
        self.cautious_tail[path] = max(cautious, tail) / at_work

    def tick(self, now_s: float, passed_s: float, rows: int, waiting: float = 0.0) -> None:
        """Decays state that no batch has confirmed since the last tick, passed_s ago.

        rows: a usual batch's. waiting: from now on.
        """
        self.waiting = waiting
        if self._batches < len(self._recent):
            kept = exp(-passed_s / SHIFT_MEMORY_S)
            self._shift *= kept
            before, last, this = self._recent
            self._recent = before * kept, last * kept, this * kept
        self._batches = 0
        if now_s - self._begun_s >= WINDOW_S:
            self._begun_s = now_s
            self._next_window()
        self._follow_executed(passed_s, rows)
        kept_tail = exp(-passed_s / TAIL_MEMORY_S)
        for path, latency in enumerate(self._latencies):
            at = rows if rows < latency.rows else latency.rows
            self._usual[path] = latency.tail[at], exp(-latency.spread[at]), latency.safe_factor
            self._tail_bias[path] *= kept_tail
            self._update(path)
            undisturbed = self._biased[path] * exp(min(self._shift, self._min_shift))
            self.undisturbed[path] = min(self.median[path] * (1 - waiting), undisturbed)
        self._min_shift = self._shift

    def _follow_executed(self, passed_s: float, rows: int) -> None:
        """Updates the bias of paths without new batches from the new batches of other paths."""
        medians = [table.median[rows if rows < table.rows else table.rows] for table in self._latencies]
        errors = [error / max(n, 1) for error, n in zip(self._ticked_error, self._ticked_count, strict=True)]
        windows = [now + before for now, before in zip(self._count, self._count_before, strict=True)]
        self._speeds.update(passed_s, self._ticked_count, errors, medians, at_rest=not any(windows))
        is_idle = not any(self._ticked_count)
        kept = exp(-passed_s / SEEN_MEMORY_S)
        for path, bias in enumerate(self._speeds.optimistic()):
            if self._ticked_count[path] or (is_idle and windows[path]):
                continue
            if not windows[path]:
                self._seen[path] = min(self._seen[path], NEW) * kept
            bias = _bounded(bias, MAX_BIAS)
            self._bias[path], self._biased[path] = bias, exp(bias)
        self._ticked_count, self._ticked_error = [0] * len(medians), [0.0] * len(medians)

    def reset(self, anew: bool = False) -> None:
        """Clears the shift and the maxima.

        anew: whether the lane restarted, so its first batches are slow.
        """
        self._recent = (0.0, 0.0, 0.0)
        self._shift = 0.0
        self._next_window()
        self._next_window()
        if anew:
            self._unproven = [FIRST_BATCHES] * len(self.median)
        self._min_shift = 0.0
        for path in range(len(self.median)):
            self._update(path)
            self.undisturbed[path] = self.median[path] * (1 - self.waiting)

    def _next_window(self) -> None:
        paths = len(self.median)
        self._count_before, self._count = self._count, [0] * paths
        self._slowest_before, self._slowest = self._slowest, [0.0] * paths
        self._delay_before_s, self._delay_s = self._delay_s, 0.0
