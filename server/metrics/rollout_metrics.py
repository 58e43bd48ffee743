"""Metrics of a rollout, by arm."""

from __future__ import annotations

from collections.abc import Sequence

from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.rollout.decision import RolloutFigures
from polyrec.planner.rollout.expected_loss import PairRecords
from polyrec.server.metrics.instruments import Registry


class RolloutMetrics:
    """Requests of both arms, latest comparison and ended rollouts. edges_s: latency histogram's edges."""

    def __init__(self, registry: Registry, edges_s: Sequence[float]) -> None:
        self._requests = registry.counter(
            "polyrec_rollout_requests",
            "Requests that a rollout compares. arm: stable or canary. outcome: ok; late; failed: not answered"
            " by this version (the stable one then answers what the canary failed); excused: not answered"
            " because other programs had the lane's processor, which is not counted as a failure.",
            *("arm", "outcome"),
        )
        self._seconds = registry.histogram(
            "polyrec_rollout_request_seconds", "Time of answered requests of a rollout.", edges_s, "arm"
        )
        self._waited = registry.counter(
            "polyrec_rollout_waited_seconds",
            "Part of polyrec_rollout_request_seconds in which other programs had the lane's processor; the"
            " comparison leaves it out.",
            "arm",
        )
        self._share = registry.gauge(
            "polyrec_rollout_share", "Share of the requests that the canary gets; 0 without a rollout."
        )
        self._psi = registry.gauge(
            "polyrec_rollout_psi", "Population stability index of the canary's scores, including chance."
        )
        self._psi_low = registry.gauge(
            "polyrec_rollout_psi_low",
            "Lower bound of the index minus chance, by which the rollout is judged.",
        )
        self._loss = registry.gauge(
            "polyrec_rollout_expected_loss",
            "Information gain that the canary is expected to lose, from both versions' answers to the same"
            " requests.",
        )
        self._comparisons = registry.counter(
            "polyrec_rollout_comparisons",
            "Requests repeated to compare both versions' answers. outcome: compared; failed by the canary;"
            " missed: rejected or not answered in time, which is not counted as a failure.",
            "outcome",
        )
        self._comparing = registry.counter(
            "polyrec_rollout_comparison_seconds",
            "Time that comparisons took from answering requests, on the event loop and the stable version's"
            " lanes.",
        )
        self._ended = registry.counter(
            "polyrec_rollouts", "Ended rollouts. outcome: promoted or rolled_back.", "outcome"
        )
        for outcome in ("promoted", "rolled_back"):
            self._ended.labels(outcome)

    def add(self, arm: str, records: ArmRecords) -> None:
        """Counts an arm's requests by outcome."""
        by_outcome = {
            "ok": len(records.took_s) - records.late,
            "late": records.late,
            "failed": records.failed,
            "excused": records.excused,
        }
        for outcome, number in by_outcome.items():
            self._requests.labels(arm, outcome).inc(number)
        self._seconds.labels(arm).observe_all(records.took_s)
        self._waited.labels(arm).inc(sum(records.waited_s))

    def add_comparisons(self, records: Sequence[PairRecords]) -> None:
        """Counts comparisons by outcome, and the time they took."""
        for part in records:
            by_outcome = {"compared": len(part.pairs), "failed": part.failed, "missed": part.missed}
            for outcome, number in by_outcome.items():
                self._comparisons.labels(outcome).inc(number)
            self._comparing.only.inc(part.spent_s)

    def compared(self, figures: RolloutFigures, share: float) -> None:
        """Sets the figures of the latest comparison."""
        self._share.only.set(share)
        self._psi.only.set(figures.psi or 0.0)
        self._psi_low.only.set(figures.psi_low or 0.0)
        self._loss.only.set(figures.loss or 0.0)

    def ended(self, outcome: str) -> None:
        """Counts an ended rollout."""
        self._ended.labels(outcome).inc()
        for gauge in (self._share, self._psi, self._psi_low, self._loss):
            gauge.only.set(0.0)
