"""Decisions: each bound, deviations by chance, and the conditions of a promotion."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.rollout.comparison import GROUPS, SPAN_S, Comparison, ComparisonFigures
from polyrec.planner.rollout.decision import (
    PROMOTE_CHANCE,
    RolloutBounds,
    RolloutDecision,
    binomial_tail,
    decide,
    exceeds,
    holds,
    min_budget_s,
)
from polyrec.planner.rollout.expected_loss import PairRecords
from tests.planner.rollout.arms import records, share, spread


def decided(
    canary: ArmRecords,
    stable: ArmRecords | None = None,
    deaths: int = 0,
    age_s: float = 60.0,
    bounds: RolloutBounds | None = None,
    live: tuple[float, float, float] | None = None,
) -> RolloutDecision:
    comparison = Comparison()
    comparison.add(0.0, stable or records(4000, seed=1), spread(canary))
    return decide(comparison.compare(0.0), deaths, age_s, bounds or RolloutBounds(), live)


def test_a_loss_on_labeled_requests_rolls_back_only_if_the_whole_interval_is_beyond_the_bound() -> None:
    for live, verdict in (
        ((-0.05, -0.08, -0.02), "rollback"),
        ((-0.05, -0.08, 0.02), "continue"),
        ((0.00, -0.005, 0.005), "promote"),
        (None, "promote"),
    ):
        bounds = RolloutBounds(promote_after_s=10.0)
        decision = decided(records(2000, seed=2), records(20_000, seed=1), bounds=bounds, live=live)
        assert decision.verdict == verdict, live
        if verdict != "promote":
            assert "labeled" in decision.reason


@pytest.mark.parametrize(
    ("canary", "reason"),
    [
        (records(1000, shift=0.7), "scores shifted"),
        (records(1000, ms=20), "took over"),
        (records(1000, failed=60), "failed 60 of 1000"),
        (records(6, failed=6), "failed 6 of 6"),
        (records(1000, late=90), "90 of the canary's 1000 answers were late"),
        (records(1000, failed=5, late=90), "90 of the canary's 995 answers were late"),
    ],
)
def test_a_bad_canary_is_rolled_back_with_the_reason(canary: ArmRecords, reason: str) -> None:
    decision = decided(canary)
    assert decision.verdict == "rollback"
    assert reason in decision.reason


Pair = tuple[NDArray[np.float32], NDArray[np.float32]]
EQUAL: Pair = np.full(3, 0.2, np.float32), np.full(3, 0.2, np.float32)


def by_pairs(both: list[Pair] | None, stable: int = 0, canary: int = 0, failed: int = 0) -> ComparisonFigures:
    """Compares arms of so many requests, and these answers of both to shadowed requests; None: no shadow."""
    comparison = Comparison(paired=both is not None)
    groups = None if both is None else [PairRecords(both[g::GROUPS], share(failed, g)) for g in range(GROUPS)]
    comparison.add(0.0, records(stable, seed=1), spread(records(canary)), groups)
    return comparison.compare(0.0)


@pytest.mark.parametrize(
    ("pairs", "stable", "canary", "share", "short"),
    [
        (199, 1000, 1000, 0.1, "199 of 200 requests answered by both versions"),
        (200, 1000, 1000, 0.1, None),
        (200, 1000, 199, 0.1, "199 of 200 requests of the canary"),
        (200, 199, 1000, 0.1, "199 of 200 requests of the stable version"),
        (None, 1000, 199, 0.1, "199 of 200 requests of the canary"),
        (None, 1000, 200, 0.1, None),
        (200, 1000, 0, 0.0, None),
        (0, 1000, 0, 0.0, "0 of 200 requests answered by both versions"),
    ],
)
def test_what_is_enough(pairs: int | None, stable: int, canary: int, share: float, short: str | None) -> None:
    compared = by_pairs(None if pairs is None else [EQUAL] * pairs, stable, canary)
    assert decide(compared, 0, 60.0, RolloutBounds(), share=share).short == short


def test_a_canary_that_only_shadows_is_never_promoted_and_says_why() -> None:
    bounds = RolloutBounds(promote_after_s=10.0)
    decision = decide(by_pairs([EQUAL] * 400, 1000), 0, 60.0, bounds, share=0.0)
    assert decision.verdict == "continue"
    assert decision.reason == "no answers to clients to judge by, as its share is 0"


def test_the_reported_limit_of_answers_follows_from_the_stable_p95() -> None:
    figures = decided(records(1000, ms=20)).figures
    p95_ms = figures.stable.p95_ms
    assert p95_ms is not None
    assert p95_ms > 0
    for bounds, limit_ms in (
        (RolloutBounds(slack_ms=0.0, max_slowdown=3.0), 3 * p95_ms),
        (RolloutBounds(slack_ms=100.0), p95_ms + 100),
    ):
        figures = decided(records(1000), bounds=bounds).figures
        assert figures.slow_limit_ms == pytest.approx(limit_ms, abs=0.002)


@pytest.mark.parametrize("promote_after_s", [None, 30.0])
def test_bounds_are_not_reported_as_met_before_the_first_request(promote_after_s: float | None) -> None:
    bounds = RolloutBounds(promote_after_s=promote_after_s)
    compared = Comparison(paired=True).compare(0.0)
    reason = "the canary has no requests that could be judged"
    assert decide(compared, 0, 60.0, bounds).reason == reason
    reason = decide(by_pairs([EQUAL]), 0, 60.0, bounds).reason
    assert reason.startswith("not enough comparisons yet: 1 of 200 requests answered by both versions")


def test_a_dead_lane_is_a_reason_without_any_request() -> None:
    decision = decided(ArmRecords(), deaths=1, age_s=0.5)
    assert decision.verdict == "rollback"
    assert "died" in decision.reason


def test_scores_that_are_no_numbers_are_failures() -> None:
    canary = records(100)
    canary.scores = [np.full(5, np.nan, np.float32)] * 100
    decision = decided(canary)
    assert decision.verdict == "rollback"
    assert decision.figures.canary.failed == 100


@pytest.mark.parametrize(
    "canary",
    [
        ArmRecords(),
        records(3, failed=1),
        records(50, shift=0.7),
        records(50, ms=20),
        records(1000, failed=12),
    ],
    ids=["nothing", "one failure", "few shifted", "few slow", "by chance"],
)
def test_deviations_that_chance_explains_roll_nothing_back(canary: ArmRecords) -> None:
    assert decided(canary).verdict == "continue"


def test_failures_that_the_stable_version_shares_roll_nothing_back() -> None:
    stable = records(4000, failed=400, late=400, seed=1)
    assert decided(records(1000, failed=100, late=90), stable).verdict == "continue"


def test_equal_versions_are_hardly_ever_rolled_back() -> None:
    verdicts = [decided(records(300, seed=i), records(900, seed=5000 + i)).verdict for i in range(2, 302)]
    assert verdicts.count("rollback") == 0


def test_promotion_needs_age_requests_and_proof() -> None:
    bounds = RolloutBounds(promote_after_s=30)
    assert decided(records(3000), bounds=bounds).verdict == "promote"
    assert "by call" in decided(records(3000)).reason
    assert "not before 30 s" in decided(records(3000), age_s=29, bounds=bounds).reason
    assert "150 of 200 requests of the canary" in decided(records(150), bounds=bounds).reason
    assert "not shown yet: at most 1.00% failures (0 of 210)" in decided(records(210), bounds=bounds).reason


def test_slow_answers_that_may_be_more_than_allowed_are_not_promoted() -> None:
    bounds = RolloutBounds(promote_after_s=30)
    for slow, verdict in ((100, "promote"), (140, "continue")):
        canary = records(3000)
        canary.took_s[:slow] = [1.0] * slow
        decision = decided(canary, bounds=bounds)
        assert decision.verdict == verdict
    assert decision.reason == "not shown yet: at most 5% slow answers (140 of 3000)"


def test_a_canary_as_late_as_a_version_that_is_always_late_is_promoted() -> None:
    bounds = RolloutBounds(promote_after_s=30)
    stable = records(4000, late=4000, seed=1)
    assert decided(records(3000, late=3000), stable, bounds=bounds).verdict == "promote"


def test_a_shift_of_scores_that_may_exceed_the_bound_is_not_promoted_and_says_by_how_much() -> None:
    canary = records(3000, shift=0.3)
    low, high = (getattr(decided(canary).figures, name) for name in ("psi_low", "psi_high"))
    bounds = RolloutBounds(promote_after_s=30, max_psi=(low + high) / 2)
    decision = decided(canary, bounds=bounds)
    assert decision.verdict == "continue"
    wanted = f"not shown yet: scores whose PSI beyond chance is at most {bounds.max_psi:g}"
    assert decision.reason == f"{wanted} (up to {high:.3f})"
    # one request tells nothing of a distribution
    bounds = RolloutBounds(promote_after_s=30, max_psi=bounds.max_psi, min_requests=1, slack_ms=1000)
    decision = decided(canary, records(1), bounds=bounds)
    assert (decision.verdict, decision.reason) == ("continue", f"{wanted} (unknown)")


def test_what_is_not_shown_yet_is_the_reason_also_if_promotion_is_by_call() -> None:
    """An operator who promotes by call must not read that bounds hold which were not tested."""
    by_call = RolloutBounds()
    assert decided(records(150)).reason == (
        "not enough comparisons yet: 150 of 200 requests of the canary; promotion is by call"
    )
    assert decided(records(3000)).reason == "all bounds are shown to hold; promotion is by call"
    worse = paired(by_call, 1.5, pairs=150)
    assert worse.verdict == "continue"
    assert worse.figures.loss is not None
    assert worse.figures.loss > 2 * by_call.max_loss
    assert f"expected loss so far is {worse.figures.loss:.3f}; promotion is by call" in worse.reason
    unclear = paired(RolloutBounds(max_loss=worse.figures.loss), 1.5)
    assert unclear.reason.startswith("not shown yet: an expected loss of at most ")
    late = decided(records(3000), age_s=1, bounds=RolloutBounds(promote_after_s=30))
    assert late.reason == "all bounds are shown to hold; promoted not before 30 s"


def test_a_canary_is_judged_by_its_time_without_the_waits_for_a_processor() -> None:
    own = records(3000)
    waits_s = list(np.random.default_rng(3).exponential(0.03, 3000))
    starved = ArmRecords(
        [took_s + wait_s for took_s, wait_s in zip(own.took_s, waits_s, strict=True)],
        scores=own.scores,
        waited_s=waits_s,
        excused=500,
    )
    bounds = RolloutBounds(promote_after_s=30)
    decision = decided(starved, bounds=bounds)
    assert decision.verdict == "promote"
    canary, alone = decision.figures.canary, decided(own, bounds=bounds).figures.canary
    assert (canary.p50_ms, canary.p95_ms, canary.p99_ms) == (alone.p50_ms, alone.p95_ms, alone.p99_ms)
    assert canary.waited_ms == pytest.approx(30, rel=0.1)
    assert (canary.requests, canary.failed, canary.excused) == (3000, 0, 500)
    # without the account of its waits, and with its own time longer, it is slow
    starved.waited_s = []
    assert "took over" in decided(starved).reason
    slow = records(3000, ms=20)
    assert "took over" in decided(ArmRecords([t + 0.03 for t in slow.took_s], waited_s=[0.03] * 3000)).reason


@pytest.mark.parametrize(
    ("requests", "failed", "excused"), [(144, 9, 93), (12, 5, 71), (62, 7, 155), (34, 5, 157)]
)
def test_a_canary_without_time_is_not_rolled_back_for_waits_that_were_not_seen(
    requests: int, failed: int, excused: int
) -> None:
    """Figures of good and shuffled canaries beside programs that kept both cores busy."""
    canary = records(requests, failed=failed)
    canary.excused = excused
    assert decided(canary).verdict == "continue"
    # but for failures of its own it is, beside any
    broken = records(requests + 50, failed=failed + 50)
    broken.excused = excused
    assert "failed" in decided(broken).reason


def test_budgets_below_the_bounds_do_not_count_as_failures() -> None:
    comparison = Comparison()
    comparison.add(0.0, ArmRecords(), spread(ArmRecords()))
    bounds = RolloutBounds(max_slowdown=2, slack_ms=0)
    assert min_budget_s(comparison.compare(0.0).stable, bounds, 0.1) == 0.1
    comparison.add(0.0, records(4000, seed=1), spread(ArmRecords()))
    stable = comparison.compare(0.0).stable
    p95_s = stable.quantile_s(0.95)
    assert p95_s is not None
    assert min_budget_s(stable, bounds, 0.1) == 2 * p95_s
    assert min_budget_s(stable, bounds, p95_s) == p95_s


def test_requests_older_than_the_window_do_not_count() -> None:
    comparison = Comparison()
    comparison.add(0.0, records(1000, seed=1), spread(records(1000, failed=900)))
    comparison.add(SPAN_S + 31, records(1000, seed=2), spread(records(1000, seed=3)))
    decision = decide(comparison.compare(SPAN_S + 31), 0, SPAN_S + 31, RolloutBounds())
    assert decision.verdict == "continue"
    assert decision.figures.canary.failed == 0


@given(of=st.integers(0, 400), share=st.floats(1e-4, 1), data=st.data())
def test_the_tail_is_the_binomial_distributions(of: int, share: float, data: st.DataObject) -> None:
    found = data.draw(st.integers(0, of + 1))
    assert binomial_tail(found, of, share) == pytest.approx(
        binom.sf(found - 1, of, share), rel=1e-6, abs=1e-12
    )


@given(of=st.integers(0, 400), share=st.floats(1e-4, 1.5), data=st.data())
def test_a_share_is_shown_to_hold_if_so_few_events_would_be_rare_at_it(
    of: int, share: float, data: st.DataObject
) -> None:
    found = data.draw(st.integers(0, of))
    chance = binom.cdf(found, of, share) if share < 1 else 0.0
    assume(abs(chance - PROMOTE_CHANCE) > 1e-9)
    assert holds(found, of, share) == (of > 0 and chance < PROMOTE_CHANCE)


@pytest.mark.parametrize(
    ("judge", "found", "of", "share"),
    [(exceeds, 50_000, 100_000, 0.01), (holds, 0, 100_000, 0.5), (holds, 49_000, 100_000, 0.5)],
)
def test_shares_of_many_requests_are_judged_in_few_steps(
    judge: Callable[[int, int, float], bool],
    found: int,
    of: int,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the event loop, every second: 100,000 steps held it for tens of milliseconds."""
    steps, lgamma = [], math.lgamma

    def counted(x: float) -> float:
        steps.append(x)
        return lgamma(x)

    monkeypatch.setattr(math, "lgamma", counted)
    assert judge(found, of, share)
    assert len(steps) < 10_000


def test_without_requests_there_are_no_figures() -> None:
    assert not exceeds(0, 0, 0.01)
    assert not holds(0, 0, 0.01)


def paired(bounds: RolloutBounds, noise: float, pairs: int = 400, failed: int = 0) -> RolloutDecision:
    random = np.random.default_rng(6)
    logits = random.normal(-2, 1, (pairs, 10))
    of = (1 / (1 + np.exp(-logits - noise * random.normal(size=logits.shape))) for noise in (0.0, noise))
    stable, canary = (scores.astype(np.float32) for scores in of)
    both = list(zip(stable, canary, strict=True))
    return decide(by_pairs(both, 4000, 3000, failed), 0, 60.0, bounds)


def test_answers_to_the_same_requests_are_judged_by_the_expected_loss() -> None:
    bounds = RolloutBounds(promote_after_s=30)
    assert paired(bounds, 0.0).verdict == "promote"
    assert paired(bounds, 0.1).verdict == "promote"
    decision = paired(bounds, 1.5)
    assert decision.verdict == "rollback"
    assert decision.reason.startswith("scores of the same requests differ: expected loss of information")
    few = paired(bounds, 1.5, pairs=150).reason
    assert few.startswith(
        "not enough comparisons yet: 150 of 200 requests answered by both versions; "
        "their expected loss so far is 0."
    )
    assert "failed 40 of 440 requests that it got as a shadow" in paired(bounds, 0.0, failed=40).reason
