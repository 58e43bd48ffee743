"""Plain reference implementation of latency correction: recomputed from all observations, without bounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log

from polyrec.planner.routing.latency import correction
from polyrec.planner.routing.latency.latency_table import LatencyTable


class Correction:
    """`latency.correction.Correction`, recomputed from all observations. Lists are by path."""

    def __init__(self, latencies: Sequence[LatencyTable]) -> None:
        paths = range(len(latencies))
        self.latencies = latencies
        self.bias, self.wider, self.known = [0.0 for _ in paths], [0.0 for _ in paths], [0.0 for _ in paths]
        self.batches = [0 for _ in paths]
        self.recent = [0.0, 0.0, 0.0]
        self.shift = 0.0
        self.shifts = [0.0]
        self.lasting = [1.0 for _ in paths]
        self.new = 0
        self.latest: list[int] = []
        self.ticked = [0.0 for _ in paths]
        self.window = 0
        self.begun_s = 0.0
        self.usual = [1 for _ in paths]
        self.residuals: list[tuple[int, int, float]] = []
        """(window, path, logarithm of observed over profiled seconds)"""
        self.delays: list[tuple[int, float]] = []

    def observe(self, path: int, rows: int, took_s: float) -> None:
        latency = self.latencies[path]
        ratio = max(took_s, correction.LEAST_S) / latency.median[rows]
        residual, spread, bias = log(ratio), latency.spread[rows], self.bias[path]
        noise = max(correction.NOISE, spread)
        self.batches[path] += 1
        if self.batches[path] <= correction.FIRST_BATCHES and residual - bias > noise:
            return
        self.new += 1
        self.latest.append(path)
        self.residuals.append((self.window, path, residual))
        if residual > bias + spread:
            self.delays.append((self.window, took_s - latency.tail[rows] * exp(bias)))
        self.recent = [*self.recent[1:], residual - bias]
        middle = sorted(self.recent)[1]
        self.shift = middle if middle >= noise else 0.0
        self.shifts.append(self.shift)
        off = residual - bias - self.shift
        step, weight = correction.BIAS_STEP, correction.BIAS_WEIGHT
        if self.known[path] < correction.NEW:
            weight = 1 / (self.known[path] + 2)
            step = correction.NEW_STEP / (self.known[path] + 2)
        self.known[path] += 1
        bias += max(-step, min(step, weight * off))
        self.bias[path] = max(-correction.MOST_BIAS, min(correction.MOST_BIAS, bias))
        above = off - spread > self.wider[path]
        up = correction.TAIL_STEP * (correction.TAIL_QUANTILE if above else correction.TAIL_QUANTILE - 1)
        self.wider[path] = max(correction.LEAST_TAIL, min(correction.MOST_TAIL, self.wider[path] + up))

    def tick(self, now_s: float, passed_s: float, rows: int) -> None:
        if self.new < 3:
            kept = exp(-passed_s / correction.SHIFT_MEMORY_S)
            self.shift *= kept
            self.recent = [residual * kept for residual in self.recent]
        self.new = 0
        if now_s - self.begun_s >= correction.WINDOW_S:
            self.window += 1
            self.begun_s = now_s
        latest, self.latest = self.latest, []
        medians = [t.median[min(rows, t.rows)] for t in self.latencies]
        known = [p for p in latest if self.known[p] - latest.count(p) >= correction.NEW]
        window = [p for p in range(len(medians)) for _ in self.recent_residuals(p)]
        after = self.expected(known or latest or window, self.bias, medians)
        before = self.expected(known, self.ticked, medians) if known else after
        for path, latency in enumerate(self.latencies):
            self.usual[path] = min(rows, latency.rows)
            self.wider[path] *= exp(-passed_s / correction.TAIL_MEMORY_S)
            if path not in latest:
                own = self.bias[path] - before[path]
                if latest or path not in window:
                    own *= exp(-passed_s / correction.BIAS_MEMORY_S)
                if path not in window:
                    kept = min(self.known[path], correction.NEW)
                    self.known[path] = kept * exp(-passed_s / correction.BIAS_MEMORY_S)
                bias = after[path] + own
                self.bias[path] = max(-correction.MOST_BIAS, min(correction.MOST_BIAS, bias))
        self.ticked = list(self.bias)
        least = min(*self.shifts, self.shift)
        self.lasting = [min(exp(bias + least), m) for bias, m in zip(self.bias, self.median, strict=True)]
        self.shifts = [self.shift]

    def expected(self, executed: list[int], bias: list[float], medians: list[float]) -> list[float]:
        """Bias to expect of each path by the paths of executed batches."""
        mean = sum(bias[p] for p in executed) / max(len(executed), 1)
        extra_s = sum(exp(bias[p]) * medians[p] - medians[p] for p in executed) / max(len(executed), 1)
        return [min(mean, log(1 + max(extra_s, 0) / m)) if mean > 0 else mean for m in medians]

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

    def bounded(self, p: int, seconds: float, most_s: float) -> float:
        """Seconds of a usual batch: at most most_s and the observed maxima, at least the median."""
        latency, rows = self.latencies[p], self.usual[p]
        if len(own := self.recent_residuals(p)) >= correction.ENOUGH:
            most_s = min(most_s, correction.MARGIN * exp(max(own)) * latency.median[rows])
        return max(min(seconds, most_s), self.median[p] * latency.median[rows])

    def tail_s(self, p: int) -> float:
        return exp(self.bias[p] + self.shift + self.wider[p]) * self.latencies[p].tail[self.usual[p]]

    @property
    def tail(self) -> list[float]:
        return [
            self.bounded(p, self.tail_s(p), self.longest_s(p)) / latency.tail[self.usual[p]]
            for p, latency in enumerate(self.latencies)
        ]

    @property
    def safe(self) -> list[float]:
        found = []
        for p, latency in enumerate(self.latencies):
            safe_s = self.bounded(p, min(self.tail_s(p), self.longest_s(p)) * latency.safe_factor, inf)
            found.append(max(safe_s / latency.tail[self.usual[p]], self.tail[p]))
        return found
