from __future__ import annotations

import numpy as np
import pytest

from benchmarks.routing.ladder import ml1m
from benchmarks.routing.ladder_live import WARM_UP_S, policies_in_turn, schedule


def test_a_load_is_a_share_of_the_cheapest_path_and_a_day_peaks_at_the_costliest_paths() -> None:
    ladder = ml1m()
    capacity = [ladder.capacity(path) for path in ladder.paths]
    low = schedule(ladder, "0.05", 2.0, 8.0, 3.0)
    assert (low.rate, low.seconds) == (pytest.approx(0.05 * capacity[0]), 2.0)
    assert low.chosen == ladder.chosen_for(0.1 * capacity[0])
    day = schedule(ladder, "day", 2.0, 8.0, 3.0)
    assert (day.rate, day.seconds) == (pytest.approx(1.5 * capacity[-1]), 8.0)
    assert day.chosen == ladder.chosen_for(3.0 * capacity[-1])


@pytest.mark.parametrize("load", ["0.05", "day"])
def test_departures_ascend_and_repeat_by_turn(load: str) -> None:
    wanted = schedule(ml1m(), load, 1.0, 4.0, 0.5)
    due_s = wanted.due_s(1)
    assert (np.diff(due_s) >= 0).all()
    assert 0 <= due_s[0] <= due_s[-1] < WARM_UP_S + wanted.seconds
    assert np.array_equal(due_s, wanted.due_s(1))
    assert not np.array_equal(due_s, wanted.due_s(2))
    told = due_s[due_s >= WARM_UP_S]
    assert told.size / wanted.seconds == pytest.approx(wanted.rate, rel=0.1)


def test_a_day_is_busiest_at_its_middle_and_begins_at_rest() -> None:
    wanted = schedule(ml1m(), "day", 1.0, 4.0, 0.5)
    due_s = wanted.due_s(0)
    before, first, middle = (
        int(((due_s >= WARM_UP_S + begin) & (due_s < WARM_UP_S + end)).sum())
        for begin, end in ((-WARM_UP_S, 0.0), (0.0, 0.5), (1.75, 2.25))
    )
    assert before < 0.05 * middle
    assert first < 0.2 * middle
    assert middle / 0.5 == pytest.approx(2 * wanted.rate, rel=0.1)


def test_every_policy_is_first_in_some_turn_and_neighbors_change_places() -> None:
    policies = ("a", "b", "c", "d")
    turns = [policies_in_turn(policies, turn) for turn in range(2 * len(policies))]
    assert all(sorted(turn) == sorted(policies) for turn in turns)
    assert {turn[0] for turn in turns} == set(policies)
    assert {(order[i], order[i + 1]) for order in turns for i in range(3)} >= {
        ("a", "b"),
        ("b", "a"),
        ("d", "a"),
    }
