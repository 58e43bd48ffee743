"""A rollout without enough comparisons says so, and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.rollout.comparison import ArmFigures
from polyrec.planner.rollout.decision import RolloutBounds, RolloutDecision, RolloutFigures, Verdict
from polyrec.planner.rollout.patience import Patience

BOUNDS = RolloutBounds(min_requests=200, judge_within_s=600.0)
ENOUGH = ArmFigures(1000, 0, 0, 1.0, 2.0, 3.0)


def decision(pairs: int | None, canary: int = 1000, verdict: Verdict = "continue") -> RolloutDecision:
    figures = RolloutFigures(
        *(500.0, ENOUGH, replace(ENOUGH, requests=canary), 0, 7.0, None, None, None, 0, pairs, 0)
    )
    return RolloutDecision(verdict, "a reason", figures)


def test_a_canary_that_is_not_compared_is_rolled_back_in_the_end() -> None:
    patience = Patience(100.0)
    early = patience.judge(decision(2), 101.0, BOUNDS, 0.1)
    assert (early.verdict, early.is_short) == ("continue", True)
    assert early.reason == "a reason; rolled back in 599 s if there are not more by then"
    late = patience.judge(decision(2), 700.0, BOUNDS, 0.1)
    assert (late.verdict, late.is_short) == ("rollback", True)
    assert late.reason == (
        "not enough comparisons, not promoted: 2 of 200 requests answered by both versions "
        "in the last 300 s, and never more in 600 s"
    )


@pytest.mark.parametrize(
    ("pairs", "canary", "share", "is_short"),
    [
        (199, 1000, 0.1, True),
        (200, 1000, 0.1, False),
        (200, 199, 0.1, True),
        (None, 199, 0.1, True),
        (None, 200, 0.1, False),
        (200, 0, 0.0, False),
        (0, 0, 0.0, True),
    ],
)
def test_what_is_enough(pairs: int | None, canary: int, share: float, is_short: bool) -> None:
    found = Patience(0.0).judge(decision(pairs, canary), 1.0, BOUNDS, share)
    assert found.is_short == is_short
    assert (found == decision(pairs, canary)) == (not is_short)


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
        found = patience.judge(decision(pairs, verdict=verdict), now_s, BOUNDS, 0.1)
        if verdict != "continue":
            assert found.verdict == verdict
        else:
            assert found.verdict == ("rollback" if now_s >= 600 and not had_enough else "continue")
            assert found.is_short == (pairs < BOUNDS.min_requests)
