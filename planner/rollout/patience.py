"""Ends a rollout that gets too few comparisons to be judged.

A canary of which little is known must not be promoted, and should not run for ever: nobody may notice that it
was never compared, because traffic is low, requests do not take part or the machine has no time. One that was
judged before is not ended, as nights may be quiet.
"""

from __future__ import annotations

from dataclasses import replace

from polyrec.planner.rollout.comparison import SPAN_S
from polyrec.planner.rollout.decision import RolloutBounds, RolloutDecision


class Patience:
    """Remembers whether a rollout ever had enough comparisons.

    began_s: the rollout's start, on a monotonic clock.
    """

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._had_enough = False

    def judge(
        self, decision: RolloutDecision, now_s: float, bounds: RolloutBounds, share: float
    ) -> RolloutDecision:
        """Returns the decision, or a rollback if there were too few comparisons for `judge_within_s`.

        Before, the reason to continue tells how much of that time is left. While the canary gets no request
        at all, the time does not pass: an operator holds the rollout.

        share: of the requests, that the canary gets now.
        """
        if not share and decision.figures.pairs is None:
            self._began_s = now_s
            return decision
        if decision.short is None:
            self._had_enough = True
        if decision.short is None or self._had_enough or decision.verdict != "continue":
            return decision
        left_s = bounds.judge_within_s - (now_s - self._began_s)
        if left_s > 0:
            reason = f"{decision.reason}; rolled back in {round(left_s)} s if there are not more by then"
            return replace(decision, reason=reason)
        seen = f"{decision.short} in the last {min(SPAN_S, decision.figures.age_s):.0f} s"
        reason = (
            f"not enough comparisons, not promoted: {seen}, and never more in {bounds.judge_within_s:g} s"
        )
        return replace(decision, verdict="rollback", reason=reason)
