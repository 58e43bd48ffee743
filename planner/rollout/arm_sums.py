"""Sums over the requests of one arm of a rollout: answers, failures, latency and scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from polyrec.models.schema.batch import F32, F64
from polyrec.planner.rollout.score_shift import BINS, ScoreCounts

LATENCY_EDGES_S = 1e-4 * 1.05 ** np.arange(284)
"""From 0.1 ms to 100 s; neighbors are 5% apart, which bounds the error of a quantile."""


@dataclass(slots=True)
class ArmRecords:
    """Requests of one arm since the last comparison.

    took_s: seconds of each answered request. late: number of answers past their budget. failed: number of
    requests that the arm did not answer. Both exclude requests whose budget is too small to count against a
    version (`decision.min_budget_s`). scores: float32 [rows] of each answered request, or of some of them.
    waited_s: by answered request, seconds that its lane waited for a CPU core used by other programs; empty
    if there were none. excused: number of unanswered requests that such waits explain.
    """

    took_s: list[float] = field(default_factory=list)
    late: int = 0
    failed: int = 0
    scores: list[F32] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    excused: int = 0

    @classmethod
    def joined(cls, parts: Iterable[ArmRecords]) -> ArmRecords:
        """Joins the records of several groups."""
        total = cls()
        for part in parts:
            total.took_s += part.took_s
            total.late += part.late
            total.failed += part.failed
            total.scores += part.scores
            total.waited_s += part.waited_s
            total.excused += part.excused
        return total


class ArmSums:
    """Sums over requests of one arm. latency: number of answers by bin, without their lanes' CPU waits."""

    __slots__ = ("answered", "excused", "failed", "late", "latency", "scores", "waited_s")

    def __init__(self) -> None:
        self.answered = self.late = self.failed = self.excused = 0
        self.waited_s = 0.0
        self.latency = np.zeros(LATENCY_EDGES_S.size + 1)
        self.scores = ScoreCounts.empty(BINS)

    @property
    def requests(self) -> int:
        return self.answered + self.failed

    def add(self, records: ArmRecords, scores: Sequence[F32], edges: F64 | None) -> None:
        """Adds records. scores: scores to count now, including those of earlier records; needs edges."""
        self.answered += len(records.took_s)
        self.late += records.late
        self.failed += records.failed
        self.excused += records.excused
        self.waited_s += sum(records.waited_s)
        own_s = np.subtract(records.took_s, records.waited_s or 0.0)
        found = np.searchsorted(LATENCY_EDGES_S, own_s)
        self.latency += np.bincount(found, minlength=self.latency.size)
        if edges is not None:
            self.scores.add(scores, edges)

    def merge(self, other: ArmSums) -> None:
        """Adds the sums over other requests."""
        self.answered += other.answered
        self.late += other.late
        self.failed += other.failed
        self.excused += other.excused
        self.waited_s += other.waited_s
        self.latency += other.latency
        self.scores.merge(other.scores)

    def quantile_s(self, share: float) -> float | None:
        """Returns the seconds that this share of the answers does not exceed; None without answers."""
        if not self.answered:
            return None
        cumulative = np.cumsum(self.latency)
        at = int(np.searchsorted(cumulative, share * cumulative[-1]))
        return float(LATENCY_EDGES_S[min(at, LATENCY_EDGES_S.size - 1)])

    def slower(self, limit_s: float) -> int:
        """Returns the number of answers slower than limit_s, which is rounded up to a bin's edge."""
        return int(self.latency[int(np.searchsorted(LATENCY_EDGES_S, limit_s)) + 1 :].sum())
