"""Decides how a rollout continues: keep going, roll back with a reason, or promote.

A bound counts as exceeded only if chance does not explain it, by the binomial test for shares and by the
lower confidence bound for the score shift. The tests are strict because they are repeated every second.
Automatic promotion requires the opposite, significant evidence that each bound holds.

Clients choose what they send and, if traffic is split by a field, also which version gets it. So a request
whose budget is less than `min_budget_s` does not count against a version. And a single value or client cannot
cause a rollback: the bound must still be exceeded without any one group of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.files import Strict
from polyrec.planner.rollout.arm_sums import ArmSums
from polyrec.planner.rollout.comparison import ArmFigures, ComparisonFigures

ROLLBACK_Z, PROMOTE_Z = 4.0, 2.0
ROLLBACK_CHANCE, PROMOTE_CHANCE = 3e-5, 0.025
"""One-sided tail probabilities of a normal distribution at ROLLBACK_Z and PROMOTE_Z."""
SLOW_SHARE = 0.05
"""Allowed share of the canary's answers above the latency limit, which follows from the stable p95."""
MISSED_SHARE = 0.25
"""Share of the excused requests that is added to the allowed failures, as observed waits may miss some.

They missed up to a tenth beside programs that kept all cores busy (docs/results/rollout.md).
"""
Verdict = Literal["continue", "rollback", "promote"]
Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Above0 = Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)]


class RolloutBounds(Strict):
    """Bounds of a canary, relative to the stable version in the same window.

    max_failed, max_late: share of requests that the canary fails or answers late, above the stable version's.
    max_slowdown: factor on the stable p95; slack_ms: milliseconds above it that are always allowed, since a
    canary's lane is a process of low priority. max_psi: population stability index of the scores. max_loss:
    information gain that the canary is expected to lose, from answers to the same requests
    (expected_loss.py). max_live_loss: information gain that it loses on requests whose labels came back, if
    live quality is measured. min_requests: of each arm, before latency and scores are judged.
    judge_within_s: age at which a canary that never had as many is rolled back (patience.py).
    promote_after_s: minimum age at which the canary is promoted, once all bounds are shown to hold; None:
    only by an admin call.
    """

    max_failed: Share = 0.01
    max_late: Share = 0.02
    max_slowdown: Annotated[float, Field(strict=True, ge=1, le=1e3, allow_inf_nan=False)] = 2.0
    slack_ms: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = 5.0
    max_psi: Above0 = 0.1
    max_loss: Above0 = 0.02
    max_live_loss: Above0 = 0.01
    min_requests: Annotated[int, Field(strict=True, ge=1, le=10**9)] = 200
    judge_within_s: Annotated[float, Field(strict=True, gt=0, le=1e8, allow_inf_nan=False)] = 3600.0
    promote_after_s: Annotated[float, Field(strict=True, ge=0, le=1e8, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, slots=True)
class RolloutFigures:
    """The figures of a decision.

    age_s: of the rollout. slow: answers of the canary slower than slow_limit_ms. psi: None with too few
    requests; psi_low: its lower bound, which is compared with the bound. lane_deaths: of the canary. pairs:
    requests that both versions answered; pairs_failed: shadowed requests that the canary failed;
    pairs_missed: shadowed requests for which there was no time. loss: information gain that the canary is
    expected to lose. live: its information gain less the stable version's on the same labeled requests, None
    without enough of them; live_low, live_high: the interval, whichever client's labels are left out.
    """

    age_s: float
    stable: ArmFigures
    canary: ArmFigures
    slow: int
    slow_limit_ms: float | None
    psi: float | None
    psi_low: float | None
    psi_high: float | None
    lane_deaths: int
    pairs: int | None = None
    pairs_failed: int | None = None
    pairs_missed: int | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    live: float | None = None
    live_low: float | None = None
    live_high: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutDecision:
    """A verdict, its reason as text with the numbers, and all figures.

    short: what there are too few of to judge the canary; None if there are enough.
    """

    verdict: Verdict
    reason: str
    figures: RolloutFigures
    short: str | None = None


def decide(
    compared: ComparisonFigures,
    lane_deaths: int,
    age_s: float,
    bounds: RolloutBounds,
    live: tuple[float, float, float] | None = None,
    share: float = 1.0,
) -> RolloutDecision:
    """Decides from both arms' sums in the window.

    age_s: age of the rollout. live: see `RolloutFigures`. share: the canary's share of the requests; at 0
    only requests answered by both versions are expected.
    """
    decision = _decide_on_all(compared, lane_deaths, age_s, bounds, live, share)
    if decision.verdict == "rollback" and not lane_deaths:
        unshadowed = replace(compared, pairs=None, loss=None)
        by_own = _decide_on_all(unshadowed, 0, age_s, bounds, live, share).verdict == "rollback"
        for others in compared.without_each_group():
            if (others.canary.requests if by_own else others.shadowed) < bounds.min_requests:
                continue
            if _decide_on_all(others, 0, age_s, bounds, live, share).verdict != "rollback":
                reason = f"only by one group of values or clients: {decision.reason}"
                return RolloutDecision("continue", reason, decision.figures, decision.short)
    return decision


def min_budget_s(stable: ArmSums, bounds: RolloutBounds, default_budget_s: float) -> float:
    """Returns the minimum budget, in seconds, of requests that count against a version.

    It is the time that the bounds allow a canary to take, or the server's default budget if that is less.
    """
    limit_s = _limit_s(stable, bounds)
    return default_budget_s if limit_s is None else min(default_budget_s, limit_s)


def _limit_s(stable: ArmSums, bounds: RolloutBounds) -> float | None:
    """Returns the seconds that a canary's answer may take; None before the stable version has answered."""
    p95_s = stable.quantile_s(0.95)
    return None if p95_s is None else max(bounds.max_slowdown * p95_s, p95_s + bounds.slack_ms / 1e3)


def _decide_on_all(
    compared: ComparisonFigures,
    lane_deaths: int,
    age_s: float,
    bounds: RolloutBounds,
    live: tuple[float, float, float] | None,
    share: float,
) -> RolloutDecision:
    figures = _figures(compared, lane_deaths, age_s, bounds, live)
    short = _shortage(figures, bounds, share)
    exceeded = _exceeded_bound(figures, bounds)
    if exceeded is not None:
        return RolloutDecision("rollback", exceeded, figures, short)
    if not figures.canary.requests and not figures.pairs:
        return RolloutDecision("continue", "the canary has no requests that could be judged", figures, short)
    missing = _missing_evidence(figures, bounds, short, share)
    shown = missing or "all bounds are shown to hold"
    if bounds.promote_after_s is None:
        return RolloutDecision("continue", f"{shown}; promotion is by call", figures, short)
    if age_s < bounds.promote_after_s:
        reason = f"{shown}; promoted not before {bounds.promote_after_s:g} s"
        return RolloutDecision("continue", reason, figures, short)
    return RolloutDecision("promote" if missing is None else "continue", shown, figures, short)


def _figures(
    compared: ComparisonFigures,
    lane_deaths: int,
    age_s: float,
    bounds: RolloutBounds,
    live: tuple[float, float, float] | None,
) -> RolloutFigures:
    """Returns the figures of a decision, rounded as they are shown and judged."""
    limit_s = _limit_s(compared.stable, bounds)
    shift, pairs, loss = compared.shift, compared.pairs, compared.loss
    live_value, live_low, live_high = (None, None, None) if live is None else (round(end, 5) for end in live)
    return RolloutFigures(
        age_s=round(age_s, 3),
        stable=ArmFigures.from_sums(compared.stable),
        canary=ArmFigures.from_sums(compared.canary),
        slow=0 if limit_s is None else compared.canary.slower(limit_s),
        slow_limit_ms=None if limit_s is None else round(1e3 * limit_s, 3),
        psi=None if shift is None else round(shift.psi, 4),
        psi_low=None if shift is None else round(shift.low(ROLLBACK_Z), 4),
        psi_high=None if shift is None else round(shift.high(PROMOTE_Z), 4),
        lane_deaths=lane_deaths,
        pairs=None if pairs is None else pairs.requests,
        pairs_failed=None if pairs is None else pairs.failed,
        pairs_missed=None if pairs is None else pairs.missed,
        loss=None if loss is None else round(loss.value, 5),
        loss_low=None if loss is None else round(loss.low(ROLLBACK_Z), 5),
        loss_high=None if loss is None else round(loss.high(PROMOTE_Z), 5),
        live=live_value,
        live_low=live_low,
        live_high=live_high,
    )


def binomial_tail(events: int, trials: int, share: float) -> float:
    """Returns the probability of at least `events` events in `trials`, each of probability `share`."""
    if events <= 0:
        return 1.0
    if share >= 1:
        return 1.0 if events <= trials else 0.0
    total = 0.0
    logs = math.log(share), math.log1p(-share)
    for k in range(events, trials + 1):
        log_ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        term = math.exp(log_ways + k * logs[0] + (trials - k) * logs[1])
        total += term
        # terms only fall from here on, also from 0, as far in the tail
        if k > trials * share and term <= 1e-9 * total:
            break
    return min(1.0, total)


def exceeds(events: int, trials: int, allowed: float) -> bool:
    """Returns whether the share of events exceeds the allowed share beyond chance."""
    return events > allowed * trials and binomial_tail(events, trials, allowed) < ROLLBACK_CHANCE


def holds(events: int, trials: int, allowed: float) -> bool:
    """Returns whether the share of events is shown to be at most the allowed share."""
    if allowed >= 1:
        return trials > 0
    # by the tail of the other requests, whose terms vanish soon; the opposite sum may have 100,000 terms
    return trials > 0 and binomial_tail(trials - events, trials, 1 - allowed) < PROMOTE_CHANCE


def _exceeded_bound(figures: RolloutFigures, bounds: RolloutBounds) -> str | None:
    """Describes the first bound that is exceeded beyond chance; None if all hold."""
    stable, canary = figures.stable, figures.canary
    answered = canary.requests - canary.failed
    if figures.lane_deaths:
        return f"a lane of the canary died ({figures.lane_deaths})"
    allowed = _allowed_failures(figures, bounds)
    if exceeds(canary.failed, canary.requests, allowed):
        return f"the canary failed {canary.failed} of {canary.requests} requests; allowed is {allowed:.2%}"
    allowed = _share(stable.late, stable.requests) + bounds.max_late
    if exceeds(canary.late, answered, allowed):
        return f"{canary.late} of the canary's {answered} answers were late; allowed is {allowed:.2%}"
    if figures.live_high is not None and figures.live_high < -bounds.max_live_loss:
        return (
            f"on labeled requests the canary's information gain is {figures.live:+.4f} from the stable "
            f"version's, at most {figures.live_high:+.4f}; allowed is {-bounds.max_live_loss:g}"
        )
    by_pairs = _bound_exceeded_by_pairs(figures, bounds)
    if by_pairs is not None:
        return by_pairs
    if canary.requests < bounds.min_requests or stable.requests < bounds.min_requests:
        return None
    if exceeds(figures.slow, answered, SLOW_SHARE):
        return (
            f"{figures.slow} of the canary's {answered} answers took over {figures.slow_limit_ms:g} ms, made "
            f"of the stable version's p95 of {stable.p95_ms:g} ms; allowed is {SLOW_SHARE:.0%}"
        )
    if figures.psi_low is not None and figures.psi_low > bounds.max_psi:
        return (
            f"scores shifted: PSI {figures.psi:.3f}, at least {figures.psi_low:.3f} beyond chance; allowed "
            f"is {bounds.max_psi:g} ({canary.requests} requests)"
        )
    return None


def _bound_exceeded_by_pairs(figures: RolloutFigures, bounds: RolloutBounds) -> str | None:
    """Describes a bound that requests answered by both versions show to be exceeded; None if all hold."""
    if figures.pairs is None or figures.pairs_failed is None:
        return None
    compared = figures.pairs + figures.pairs_failed
    if exceeds(figures.pairs_failed, compared, bounds.max_failed):
        return f"the canary failed {figures.pairs_failed} of {compared} requests that it got as a shadow"
    if figures.pairs < bounds.min_requests or figures.loss_low is None:
        return None
    if figures.loss_low > bounds.max_loss:
        return (
            f"scores of the same requests differ: expected loss of information {figures.loss:.3f}, at least "
            f"{figures.loss_low:.3f} beyond chance; allowed is {bounds.max_loss:g} ({figures.pairs} requests)"
        )
    return None


def _missing_evidence(
    figures: RolloutFigures, bounds: RolloutBounds, short: str | None, share: float
) -> str | None:
    """Describes the first bound that is not shown to hold; None if all are. short: see `RolloutDecision`."""
    stable, canary = figures.stable, figures.canary
    answered = canary.requests - canary.failed
    if short is not None:
        seen = "" if figures.loss is None else f"; their expected loss so far is {figures.loss:.3f}"
        return f"not enough comparisons yet: {short}{seen}"
    if figures.pairs is not None and (figures.loss_high is None or figures.loss_high > bounds.max_loss):
        high = figures.loss_high
        seen = "unknown" if high is None else f"{figures.loss:.4f}, up to {high:.4f}"
        return f"not shown yet: an expected loss of at most {bounds.max_loss:g} ({seen})"
    if not share:
        return "no answers to clients to judge by, as its share is 0"
    allowed = _allowed_failures(figures, bounds)
    if not holds(canary.failed, canary.requests, allowed):
        return f"not shown yet: at most {allowed:.2%} failures ({canary.failed} of {canary.requests})"
    allowed = _share(stable.late, stable.requests) + bounds.max_late
    if not holds(canary.late, answered, allowed):
        return f"not shown yet: at most {allowed:.2%} late answers ({canary.late} of {answered})"
    if not holds(figures.slow, answered, SLOW_SHARE):
        return f"not shown yet: at most {SLOW_SHARE:.0%} slow answers ({figures.slow} of {answered})"
    if figures.psi_high is None or figures.psi_high > bounds.max_psi:
        seen = "unknown" if figures.psi_high is None else f"up to {figures.psi_high:.3f}"
        return f"not shown yet: scores whose PSI beyond chance is at most {bounds.max_psi:g} ({seen})"
    if figures.live_low is not None and figures.live_low < -bounds.max_live_loss:
        return (
            f"not shown yet: a loss on labeled requests of at most {bounds.max_live_loss:g} "
            f"(up to {-figures.live_low:.4f})"
        )
    return None


def _shortage(figures: RolloutFigures, bounds: RolloutBounds, share: float) -> str | None:
    """Describes what there are too few of to judge the canary; None if there are enough."""
    counts = [] if figures.pairs is None else [(figures.pairs, "answered by both versions")]
    if share:
        counts += [
            (figures.canary.requests, "of the canary"),
            (figures.stable.requests, "of the stable version"),
        ]
    return next(
        (f"{n} of {bounds.min_requests} requests {what}" for n, what in counts if n < bounds.min_requests),
        None,
    )


def _allowed_failures(figures: RolloutFigures, bounds: RolloutBounds) -> float:
    """Returns the share of its requests that the canary may leave unanswered."""
    stable, canary = figures.stable, figures.canary
    missed = MISSED_SHARE * _share(canary.excused, canary.requests + canary.excused)
    return min(1.0, _share(stable.failed, stable.requests) + bounds.max_failed + missed)


def _share(events: int, trials: int) -> float:
    return events / trials if trials else 0.0
