"""Which requests are compared: some a second whatever the load, at a bounded cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.rollout.pace import SPARE_INTERVAL_S, TIME_SHARE, ComparisonPace

GAPS_S = st.lists(st.floats(1e-4, 0.3), min_size=1, max_size=200)


def taken_at(
    pace: ComparisonPace, gaps_s: Sequence[float], spare: Sequence[bool], cost_s: float = 0.0
) -> list[tuple[float, bool]]:
    """Times of the requests taken, and whether they are guaranteed; these cost cost_s each."""
    now_s, found = 0.0, []
    for i, gap_s in enumerate(gaps_s):
        now_s += gap_s
        taken = pace.take(now_s, spare[i % len(spare)])
        if taken is not None:
            found.append((now_s, taken))
            if taken:
                pace.spend(now_s, cost_s)
    return found


@given(
    gaps_s=GAPS_S,
    spare=st.lists(st.booleans(), min_size=1, max_size=20),
    share=st.floats(0, 1),
    per_s=st.floats(0.5, 50),
)
def test_so_many_a_second_are_compared_whatever_the_load(
    gaps_s: list[float], spare: list[bool], share: float, per_s: float
) -> None:
    times = [0.0, *(at_s for at_s, _ in taken_at(ComparisonPace(share, per_s), gaps_s, spare))]
    waited_s = [later - earlier for earlier, later in zip(times, [*times[1:], sum(gaps_s)], strict=True)]
    assert max(waited_s) <= 1 / per_s + max(gaps_s) + 1e-6


@given(
    gaps_s=GAPS_S,
    spare=st.lists(st.booleans(), min_size=1, max_size=20),
    per_s=st.floats(0.5, 50),
    cost_s=st.floats(0, 0.1),
)
def test_guaranteed_comparisons_are_no_more_and_take_a_bounded_share_of_the_time(
    gaps_s: list[float], spare: list[bool], per_s: float, cost_s: float
) -> None:
    found = taken_at(ComparisonPace(0.1, per_s), gaps_s, spare, cost_s)
    guaranteed = [at_s for at_s, is_guaranteed in found if is_guaranteed]
    if guaranteed:
        lasted_s = guaranteed[-1] - guaranteed[0]
        assert len(guaranteed) - 1 <= lasted_s * per_s + 1e-6
        assert cost_s * (len(guaranteed) - 1) <= TIME_SHARE * lasted_s + 1e-9


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_in_spare_time_a_share_is_compared_without_the_guarantee(share: float) -> None:
    gaps_s = [0.05] * 1000
    found = taken_at(ComparisonPace(share, 0.0), gaps_s, [True])
    assert len(found) == pytest.approx(1000 * share, abs=1)
    assert not any(is_guaranteed for _, is_guaranteed in found)
    assert taken_at(ComparisonPace(share, 0.0), gaps_s, [False]) == []


def test_comparisons_in_spare_time_keep_their_distance() -> None:
    found = taken_at(ComparisonPace(1.0, 50.0), [1e-3] * 1000, [True, False, True])
    times = [at_s for at_s, _ in found]
    assert min(b - a for a, b in pairwise(times)) >= SPARE_INTERVAL_S - 1e-9
