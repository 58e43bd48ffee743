"""The recent requests of one arm of a rollout: answers, failures, latency and scores in a sliding window."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from polyrec.planner.rollout.score_shift import BINS, F32, F64, ScoreCounts

SLICES = 10
"""Parts of a window; the oldest is dropped as a new one begins."""
LATENCY_EDGES_S = 1e-4 * 1.05 ** np.arange(284)
"""From 0.1 ms to 100 s; neighbors are 5% apart, which bounds the error of a quantile."""


@dataclass(slots=True)
class ArmRecords:
    """Requests of one arm since the last look.

    took_s: of each answered request, seconds. late: of them, those past their budget. failed: requests that
    the arm did not answer. scores: of answered requests, float32 [rows] each; possibly not of all.
    """

    took_s: list[float] = field(default_factory=list)
    late: int = 0
    failed: int = 0
    scores: list[F32] = field(default_factory=list)


class ArmSlice:
    """Counts of a part of the window."""

    __slots__ = ("answered", "failed", "late", "latency", "scores", "start_s")

    def __init__(self, start_s: float, bins: int = BINS) -> None:
        self.start_s = start_s
        self.answered = self.late = self.failed = 0
        self.latency = np.zeros(LATENCY_EDGES_S.size + 1)
        self.scores = ScoreCounts.empty(bins)

    @property
    def requests(self) -> int:
        return self.answered + self.failed

    def quantile_s(self, share: float) -> float | None:
        """Latency that this share of the answers does not exceed, in seconds; None without answers."""
        if not self.answered:
            return None
        cumulative = np.cumsum(self.latency)
        at = int(np.searchsorted(cumulative, share * cumulative[-1]))
        return float(LATENCY_EDGES_S[min(at, LATENCY_EDGES_S.size - 1)])

    def slower(self, limit_s: float) -> int:
        """Number of answers that took longer, by the window's resolution of 5%."""
        return int(self.latency[int(np.searchsorted(LATENCY_EDGES_S, limit_s)) + 1 :].sum())


class ArmWindow:
    """The requests of one arm in the last span_s seconds."""

    def __init__(self, span_s: float) -> None:
        self._slice_s = span_s / SLICES
        self._slices: deque[ArmSlice] = deque(maxlen=SLICES)

    def add(self, now_s: float, records: ArmRecords, scores: Sequence[F32], edges: F64 | None) -> None:
        """Counts records. scores: to compare, possibly of an earlier moment; needs edges if there are any."""
        if not self._slices or now_s >= self._slices[-1].start_s + self._slice_s:
            self._slices.append(ArmSlice(now_s))
        current = self._slices[-1]
        current.answered += len(records.took_s)
        current.late += records.late
        current.failed += records.failed
        found = np.searchsorted(LATENCY_EDGES_S, records.took_s)
        current.latency += np.bincount(found, minlength=current.latency.size)
        if edges is not None:
            current.scores.add(scores, edges)

    def total(self, now_s: float) -> ArmSlice:
        """Returns the sum of the window."""
        total = ArmSlice(now_s)
        oldest_s = now_s - SLICES * self._slice_s
        for part in self._slices:
            if part.start_s >= oldest_s:
                total.answered += part.answered
                total.late += part.late
                total.failed += part.failed
                total.latency += part.latency
                total.scores.merge(part.scores)
        return total
