"""Compares the two arms of a rollout over a sliding window.

server/rollout/control.py adds the records of both arms and gets sums and figures, on which decision.py
decides. The bins for scores are deciles of the stable version's first scores, and stay fixed for the whole
rollout; scores are kept until the bins are known. The canary's requests, and those that both arms answered,
are summed in GROUPS groups of values or clients, so that a decision can leave out any single group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from polyrec.models.schema.batch import F32, F64
from polyrec.planner.rollout.arm_sums import ArmRecords, ArmSums
from polyrec.planner.rollout.expected_loss import ExpectedLoss, PairRecords, PairSums, expected_loss
from polyrec.planner.rollout.score_shift import ScoreShift, bin_edges, score_shift
from polyrec.planner.rollout.window import SlidingWindow, merged

T = TypeVar("T")

SPAN_S = 300.0
"""Length of the window: short enough that a version that becomes worse later is noticed."""
BIN_REQUESTS = 100
"""Requests of the stable version that determine the bins."""
MAX_WAITING = 1000
"""Maximum requests of an arm, or of a group, whose scores are kept until the bins are known."""
GROUPS = 16
"""Groups of values or clients: leaving one out costs little evidence."""


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """Requests of one arm in the window.

    failed: requests it did not answer. late: requests answered past their budget. waited_ms: mean time per
    answer that its lane waited for a CPU core, which the quantiles exclude. excused: unanswered requests that
    such waits explain; no other figure includes them.
    """

    requests: int
    failed: int
    late: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    waited_ms: float = 0.0
    excused: int = 0

    @classmethod
    def from_sums(cls, total: ArmSums) -> ArmFigures:
        p50, p95, p99 = (_milliseconds(total.quantile_s(share)) for share in (0.5, 0.95, 0.99))
        waited_ms = round(1e3 * total.waited_s / max(1, total.answered), 3)
        return cls(total.requests, total.failed, total.late, p50, p95, p99, waited_ms, total.excused)


@dataclass(slots=True)
class ComparisonFigures:
    """Sums of both arms in the window, the shift of their scores, and the answers to the same requests.

    pairs: None without a shadow. shift, loss: None with too few requests. groups, pair_groups: the sums of
    canary and pairs by group.
    """

    stable: ArmSums
    canary: ArmSums
    shift: ScoreShift | None
    pairs: PairSums | None = None
    loss: ExpectedLoss | None = None
    groups: Sequence[ArmSums] = ()
    pair_groups: Sequence[PairSums] = ()

    @property
    def shadowed(self) -> int:
        """Number of requests that were repeated at the canary."""
        return 0 if self.pairs is None else self.pairs.requests + self.pairs.failed

    def without_each_group(self) -> Iterator[ComparisonFigures]:
        """Yields, for each group, these sums without its requests."""
        for left_out in range(GROUPS):
            canary = merged(ArmSums, _others(self.groups, left_out))
            without = replace(
                self, canary=canary, shift=score_shift(self.stable.scores, canary.scores), groups=()
            )
            if self.pairs is not None:
                without.pairs = merged(PairSums, _others(self.pair_groups, left_out))
                without.loss = expected_loss(without.pairs)
            yield without


@dataclass(slots=True)
class _Arm:
    window: SlidingWindow[ArmSums] = field(default_factory=lambda: SlidingWindow(SPAN_S, ArmSums))
    waiting: list[F32] = field(default_factory=list)


class Comparison:
    """Collects the records of both arms. paired: whether a shadow lets both arms answer some requests."""

    def __init__(self, paired: bool = False) -> None:
        self._stable, self._canary = _Arm(), [_Arm() for _ in range(GROUPS)]
        self._pairs = [SlidingWindow(SPAN_S, PairSums) for _ in range(GROUPS)] if paired else None
        self._edges: F64 | None = None

    def add(
        self,
        now_s: float,
        stable: ArmRecords,
        canary: Sequence[ArmRecords],
        pairs: Sequence[PairRecords] | None = None,
    ) -> None:
        """Adds the records since the last call. now_s: on a monotonic clock. canary, pairs: by group."""
        if self._pairs is not None and pairs is not None:
            for window, found in zip(self._pairs, pairs, strict=True):
                window.current(now_s).add(found)
        arms = ((self._stable, stable), *zip(self._canary, canary, strict=True))
        for arm, records in arms:
            arm.waiting += finite_scores(records)
            del arm.waiting[MAX_WAITING:]
        if self._edges is None and len(self._stable.waiting) >= BIN_REQUESTS:
            self._edges = bin_edges(np.concatenate(self._stable.waiting))
        for arm, records in arms:
            scores: list[F32] = []
            if self._edges is not None:
                scores, arm.waiting = arm.waiting, []
            arm.window.current(now_s).add(records, scores, self._edges)

    def compare(self, now_s: float) -> ComparisonFigures:
        """Returns the window's sums."""
        stable = self._stable.window.total(now_s)
        groups = [arm.window.total(now_s) for arm in self._canary]
        canary = merged(ArmSums, groups)
        compared = ComparisonFigures(stable, canary, score_shift(stable.scores, canary.scores), groups=groups)
        if self._pairs is not None:
            compared.pair_groups = [window.total(now_s) for window in self._pairs]
            compared.pairs = merged(PairSums, compared.pair_groups)
            compared.loss = expected_loss(compared.pairs)
        return compared


def finite_scores(records: ArmRecords) -> list[F32]:
    """Returns the requests' finite scores; a request with a score that is not finite counts as failed."""
    kept = [scores for scores in records.scores if np.isfinite(scores).all()]
    records.failed += len(records.scores) - len(kept)
    return [scores for scores in kept if scores.size]


def _others(groups: Sequence[T], left_out: int) -> list[T]:
    return [*groups[:left_out], *groups[left_out + 1 :]]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)
