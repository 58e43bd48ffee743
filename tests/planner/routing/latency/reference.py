"""Plain reference implementation of latency correction: recomputed from all observations, without bounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, sqrt

import numpy as np

from polyrec.planner.routing.latency import correction, path_speeds
from polyrec.planner.routing.latency.latency_table import LatencyTable


def expected(error: float, reference_s: float, median_s: float) -> float:
    """Error to expect of a path by that of another: the same factor or the same seconds, if that is less."""
    return min(error, log(1 + max(exp(error) - 1, 0) * reference_s / median_s)) if error > 0 else error


class PathSpeeds:
    """`latency.path_speeds.PathSpeeds` by the textbook: one observation matrix, Joseph's form."""

    def __init__(self, variances: Sequence[float]) -> None:
        paths = len(variances)
        self.errors = [0.0] * paths
        self.variances = variances
        common, own = path_speeds.UNKNOWN_VARIANCE, path_speeds.UNTRIED_VARIANCE
        self.covariance = np.array([[common + own * (i == j) for i in range(paths)] for j in range(paths)])
        self.reference = 0

    def update(
        self, passed_s: float, latest: list[tuple[int, float]], medians: Sequence[float], at_rest: bool
    ) -> None:
        paths = range(len(medians))
        batches = {p: [error for path, error in latest if path == p] for p in paths}
        for i in paths:
            for j in paths:
                self.covariance[i, j] += path_speeds.COMMON_VARIANCE_S * passed_s
        for p in paths:
            own = self.covariance[p, p] - min(self.covariance[p, q] for q in paths)
            if own < path_speeds.UNTRIED_VARIANCE:
                self.covariance[p, p] += path_speeds.OWN_VARIANCE_S * passed_s
        for p in paths:
            if batches[p]:
                noise = (
                    max(path_speeds.BATCH_VARIANCE, self.variances[p]) / len(batches[p])
                    + path_speeds.TICK_VARIANCE
                )
                self.observe(p, sum(batches[p]) / len(batches[p]), noise, medians)
        if latest:
            self.reference = max(paths, key=lambda p: len(batches[p]))
        known = exp(-passed_s / path_speeds.COMMON_MEMORY_S) if at_rest else 1.0
        error, reference_s = self.errors[self.reference], medians[self.reference]
        for p in paths:
            if not batches[p]:
                deviation = self.errors[p] - expected(error, reference_s, medians[p])
                deviation *= exp(-passed_s / path_speeds.OWN_MEMORY_S)
                self.errors[p] = expected(known * error, reference_s, medians[p]) + deviation

    def optimistic(self, path: int) -> float:
        """The path's error, at most that of the reference path unless it is surely higher."""
        at = [path, self.reference]
        sign = np.array([1.0, -1.0])
        deviation = sqrt(max(0.0, float(sign @ self.covariance[np.ix_(at, at)] @ sign)))
        base = self.errors[self.reference]
        return min(self.errors[path], max(base, self.errors[path] - path_speeds.OPTIMISM * deviation))

    def observe(self, path: int, error: float, noise: float, medians: Sequence[float]) -> None:
        size = len(medians)
        observation = np.zeros((1, size))
        observation[0, path] = 1
        innovation = error - self.errors[path]
        gain = (
            self.covariance
            @ observation.T
            @ np.linalg.inv(observation @ self.covariance @ observation.T + noise)
        )
        rest = np.eye(size) - gain @ observation
        self.covariance = rest @ self.covariance @ rest.T + noise * gain @ gain.T
        old, new = self.errors[path], [self.errors[path] + g * innovation for g in gain[:, 0]]
        for p in range(size):
            s = medians[path], medians[p]
            self.errors[p] += expected(new[p], *s) - expected(old, *s)


class Correction:
    """`latency.correction.Correction`, recomputed from all observations. Lists are by path."""

    def __init__(self, latencies: Sequence[LatencyTable]) -> None:
        paths = range(len(latencies))
        self.latencies = latencies
        self.bias, self.tail_bias, self.known = (
            [0.0 for _ in paths],
            [0.0 for _ in paths],
            [0.0 for _ in paths],
        )
        self.batches = [0 for _ in paths]
        self.recent = [0.0, 0.0, 0.0]
        self.shift = 0.0
        self.shifts = [0.0]
        self.undisturbed = [1.0 for _ in paths]
        self.new = 0
        self.latest: list[tuple[int, float]] = []
        """(path, logarithm of observed over profiled seconds), without shift and outliers, of this tick"""
        self.speeds = PathSpeeds([latency.variance for latency in latencies])
        self.window = 0
        self.begun_s = 0.0
        self.usual = [1 for _ in paths]
        self.residuals: list[tuple[int, int, float]] = []
        """(window, path, logarithm of observed over profiled seconds)"""
        self.delays: list[tuple[int, float]] = []

    def observe(self, path: int, rows: int, took_s: float) -> None:
        latency = self.latencies[path]
        ratio = max(took_s, correction.MIN_S) / latency.median[rows]
        residual, spread, bias = log(ratio), latency.spread[rows], self.bias[path]
        noise = max(correction.NOISE, spread)
        self.batches[path] += 1
        if self.batches[path] <= correction.FIRST_BATCHES and residual - bias > noise:
            return
        self.new += 1
        self.residuals.append((self.window, path, residual))
        if residual > bias + spread:
            self.delays.append((self.window, took_s - latency.tail[rows] * exp(bias)))
        self.recent = [*self.recent[1:], residual - bias]
        middle = sorted(self.recent)[1]
        self.shift = middle if middle >= noise else 0.0
        self.shifts.append(self.shift)
        off = residual - bias - self.shift
        self.latest.append((path, bias + min(max(off, -correction.MAX_OFF), correction.MAX_OFF)))
        step, weight = correction.BIAS_STEP, correction.BIAS_WEIGHT
        if self.known[path] < correction.NEW:
            weight = 1 / (self.known[path] + 2)
            step = correction.NEW_STEP / (self.known[path] + 2)
        self.known[path] += 1
        bias += max(-step, min(step, weight * off))
        self.bias[path] = max(-correction.MAX_BIAS, min(correction.MAX_BIAS, bias))
        above = off - spread > self.tail_bias[path]
        up = correction.TAIL_STEP * (correction.TAIL_QUANTILE if above else correction.TAIL_QUANTILE - 1)
        self.tail_bias[path] = max(correction.MIN_TAIL, min(correction.MAX_TAIL, self.tail_bias[path] + up))

    def tick(self, now_s: float, passed_s: float, rows: int) -> None:
        if self.new < 3:
            kept = exp(-passed_s / correction.SHIFT_MEMORY_S)
            self.shift *= kept
            self.recent = [residual * kept for residual in self.recent]
        self.new = 0
        if now_s - self.begun_s >= correction.WINDOW_S:
            self.window += 1
            self.begun_s = now_s
        medians = [t.median[min(rows, t.rows)] for t in self.latencies]
        at_rest = not any(self.recent_residuals(path) for path in range(len(self.latencies)))
        self.speeds.update(passed_s, self.latest, medians, at_rest)
        for path, latency in enumerate(self.latencies):
            self.usual[path] = min(rows, latency.rows)
            self.tail_bias[path] *= exp(-passed_s / correction.TAIL_MEMORY_S)
            is_recent = bool(self.recent_residuals(path))
            is_executed = path in [executed for executed, _ in self.latest]
            if not is_executed and (self.latest or not is_recent):
                if not is_recent:
                    kept = min(self.known[path], correction.NEW)
                    self.known[path] = kept * exp(-passed_s / correction.SEEN_MEMORY_S)
                error = self.speeds.optimistic(path)
                self.bias[path] = max(-correction.MAX_BIAS, min(correction.MAX_BIAS, error))
        self.latest = []
        least = min(*self.shifts, self.shift)
        self.undisturbed = [min(exp(bias + least), m) for bias, m in zip(self.bias, self.median, strict=True)]
        self.shifts = [self.shift]

    def recent_residuals(self, path: int) -> list[float]:
        return [r for window, p, r in self.residuals if p == path and window >= self.window - 1]

    def longest_s(self, path: int) -> float:
        """Upper bound in seconds for a usual batch, by the longest delay of the lane."""
        delay_s = max((d for window, d in self.delays if window >= self.window - 1), default=0.0)
        tail_s = self.latencies[path].tail[self.usual[path]]
        return exp(self.bias[path]) * tail_s + correction.MARGIN * delay_s

    @property
    def median(self) -> list[float]:
        return [
            min(exp(self.bias[p] + self.shift), self.longest_s(p) / latency.median[self.usual[p]])
            for p, latency in enumerate(self.latencies)
        ]

    def bounded(self, p: int, seconds: float, max_s: float) -> float:
        """Seconds of a usual batch: at most max_s and the observed maxima, at least the median."""
        latency, rows = self.latencies[p], self.usual[p]
        if len(own := self.recent_residuals(p)) >= correction.ENOUGH:
            max_s = min(max_s, correction.MARGIN * exp(max(own)) * latency.median[rows])
        return max(min(seconds, max_s), self.median[p] * latency.median[rows])

    def tail_s(self, p: int) -> float:
        return exp(self.bias[p] + self.shift + self.tail_bias[p]) * self.latencies[p].tail[self.usual[p]]

    @property
    def tail(self) -> list[float]:
        return [
            self.bounded(p, self.tail_s(p), self.longest_s(p)) / latency.tail[self.usual[p]]
            for p, latency in enumerate(self.latencies)
        ]

    @property
    def cautious_tail(self) -> list[float]:
        found = []
        for p, latency in enumerate(self.latencies):
            safe_s = self.bounded(p, min(self.tail_s(p), self.longest_s(p)) * latency.safe_factor, inf)
            found.append(max(safe_s / latency.tail[self.usual[p]], self.tail[p]))
        return found
