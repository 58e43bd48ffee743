from __future__ import annotations

import pytest

from polyrec.planner.fleet.weights import capacity_weights, weight_percent


def test_weights_are_in_proportion_to_capacity() -> None:
    assert capacity_weights([2000.0, 500.0, 1.0]) == [100, 25, 1]
    assert capacity_weights([0.0, 0.0]) == [100, 100]
    assert capacity_weights([]) == []


@pytest.mark.parametrize(
    ("lane_share", "backlog_s", "percent"),
    [
        (1.0, 0.0, 100),
        (0.5, 0.0, 50),  # one of two lanes is lost
        (1.2, 0.0, 100),
        (1.0, 0.1, 50),  # a backlog of the whole budget
        (0.0, 0.0, 1),
    ],
)
def test_a_replica_that_lost_lanes_or_has_a_backlog_gets_less(
    lane_share: float, backlog_s: float, percent: int
) -> None:
    assert weight_percent(lane_share, backlog_s, budget_s=0.1) == percent


def test_without_a_budget_the_backlog_does_not_count() -> None:
    assert weight_percent(1.0, 5.0, 0.0) == 100
