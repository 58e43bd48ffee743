"""Which requests are compared: some a second whatever the load, at a bounded cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.rollout.pace import SPARE_INTERVAL_S, TIME_SHARE, ComparisonPace

GAPS_S = st.lists(st.floats(1e-4, 0.3), min_size=1, max_size=200)
NEVER = 1e-9


def pace(share: float, per_s: float) -> ComparisonPace:
    return ComparisonPace(share, per_s, Random(7))


def taken_at(
    chooser: ComparisonPace, gaps_s: Sequence[float], spare: Sequence[bool], cost_s: float = 0.0
) -> list[tuple[float, bool]]:
    """Times of the requests taken, and whether they are guaranteed; these cost cost_s each."""
    now_s, found = 0.0, []
    for i, gap_s in enumerate(gaps_s):
        now_s += gap_s
        taken = chooser.take(now_s, spare[i % len(spare)])
        if taken is not None:
            found.append((now_s, taken))
            if taken:
                chooser.spend(now_s, cost_s)
    return found


@given(gaps_s=GAPS_S, spare=st.lists(st.booleans(), min_size=1, max_size=20), share=st.floats(0, 1))
def test_all_are_compared_that_come_more_slowly(gaps_s: list[float], spare: list[bool], share: float) -> None:
    apart_s = [0.1 + gap_s for gap_s in gaps_s]
    assert len(taken_at(pace(share, 10.0), apart_s, spare)) == len(gaps_s)


@pytest.mark.parametrize("per_s", [1.0, 10.0, 50.0])
def test_so_many_a_second_are_compared_whatever_the_load(per_s: float) -> None:
    gaps_s = Random(3).choices([1e-4, 5e-4, 2e-3], k=200_000)
    found = taken_at(pace(0.1, per_s), gaps_s, [False])
    assert 0.85 * per_s < len(found) / sum(gaps_s) <= per_s


@pytest.mark.parametrize("first", [1, 2])
def test_whose_answers_come_first_in_each_batch_decides_no_more_than_others(first: int) -> None:
    chooser, random, now_s = pace(NEVER, 10.0), Random(5), 0.0
    taken: list[int] = []
    for _ in range(20_000):
        now_s += random.uniform(0.005, 0.015)
        taken += [i for i in range(10) if chooser.take(now_s + 1e-6 * i, has_spare_time=False)]
    assert len(taken) > 1500
    assert sum(i < first for i in taken) / len(taken) == pytest.approx(first / 10, abs=0.05)


@given(
    gaps_s=GAPS_S,
    spare=st.lists(st.booleans(), min_size=1, max_size=20),
    per_s=st.floats(0.5, 50),
    cost_s=st.floats(0, 0.1),
)
def test_guaranteed_comparisons_are_no_more_and_take_a_bounded_share_of_the_time(
    gaps_s: list[float], spare: list[bool], per_s: float, cost_s: float
) -> None:
    found = taken_at(pace(0.1, per_s), gaps_s, spare, cost_s)
    guaranteed = [at_s for at_s, is_guaranteed in found if is_guaranteed]
    if guaranteed:
        lasted_s = guaranteed[-1] - guaranteed[0]
        assert len(guaranteed) - 2 <= lasted_s * per_s + 1e-6
        assert cost_s * (len(guaranteed) - 1) <= TIME_SHARE * lasted_s + 1e-9


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_in_spare_time_a_share_is_compared_without_the_guarantee(share: float) -> None:
    gaps_s = [0.05] * 1000
    found = taken_at(pace(share, 0.0), gaps_s, [True])
    assert len(found) == pytest.approx(1000 * share, abs=1)
    assert not any(is_guaranteed for _, is_guaranteed in found)
    assert taken_at(pace(share, 0.0), gaps_s, [False]) == []


def test_comparisons_in_spare_time_keep_their_distance() -> None:
    found = taken_at(pace(1.0, 50.0), [1e-3] * 1000, [True, False, True])
    apart_s = [b - a for (a, _), (b, is_guaranteed) in pairwise(found) if not is_guaranteed]
    assert min(apart_s) >= SPARE_INTERVAL_S - 1e-9
