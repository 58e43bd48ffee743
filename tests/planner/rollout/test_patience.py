"""A rollout without enough comparisons says so, and ends."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.rollout.comparison import ArmFigures
from polyrec.planner.rollout.decision import RolloutBounds, RolloutDecision, RolloutFigures, Verdict
from polyrec.planner.rollout.patience import Patience

BOUNDS = RolloutBounds(min_requests=200, judge_within_s=600.0)
ENOUGH = ArmFigures(1000, 0, 0, 1.0, 2.0, 3.0)


FIGURES = RolloutFigures(500.0, ENOUGH, ENOUGH, 0, 7.0, None, None, None, 0)


def decision(pairs: int, verdict: Verdict = "continue") -> RolloutDecision:
    short = f"{pairs} of 200 requests answered by both versions" if pairs < BOUNDS.min_requests else None
    return RolloutDecision(verdict, "a reason", FIGURES, short)


def test_a_canary_that_is_not_compared_is_rolled_back_in_the_end() -> None:
    patience = Patience(100.0)
    early = patience.judge(decision(2), 101.0, BOUNDS, 0.05)
    assert early.verdict == "continue"
    assert early.reason == "a reason; rolled back in 599 s if there are not more by then"
    late = patience.judge(decision(2), 700.0, BOUNDS, 0.05)
    assert late.verdict == "rollback"
    assert late.reason == (
        "not enough comparisons, not promoted: 2 of 200 requests answered by both versions "
        "in the last 300 s, and never more in 600 s"
    )


def test_one_that_is_held_has_not_been_judged_and_waits_as_long_as_it_is_held() -> None:
    patience = Patience(0.0)
    unpaired = replace(decision(2), figures=replace(FIGURES, pairs=None))
    held = replace(unpaired, short=None)
    assert patience.judge(held, 10_000.0, BOUNDS, share=0.0) == held
    assert patience.judge(unpaired, 10_599.0, BOUNDS, share=0.05).verdict == "continue"
    assert patience.judge(unpaired, 10_600.0, BOUNDS, share=0.05).verdict == "rollback"


@given(
    seen=st.lists(
        st.tuples(
            st.floats(0.5, 200),
            st.integers(0, 400),
            st.sampled_from(["continue", "continue", "continue", "promote", "rollback"]),
        ),
        max_size=40,
    )
)
def test_it_ends_if_and_only_if_there_were_never_enough(
    seen: list[tuple[float, int, Verdict]],
) -> None:
    patience, now_s, had_enough = Patience(0.0), 0.0, False
    for gap_s, pairs, verdict in seen:
        now_s += gap_s
        had_enough |= pairs >= BOUNDS.min_requests
        found = patience.judge(decision(pairs, verdict=verdict), now_s, BOUNDS, 0.05)
        if verdict != "continue":
            assert found.verdict == verdict
        else:
            assert found.verdict == ("rollback" if now_s >= 600 and not had_enough else "continue")
