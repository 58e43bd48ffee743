from __future__ import annotations

import pytest

from polyrec.planner.fleet.autoscaling import (
    ReplicaLoad,
    Scaling,
    ScalingBounds,
    decide,
    replicas_needed,
)

BOUNDS = ScalingBounds(least=1, most=8, target_demand=0.5, clear_s=10, calm_s=60)


def loads(*demands: float, backlog_s: float = 0.0, price: float = 0.0) -> list[ReplicaLoad]:
    return [ReplicaLoad(demand, backlog_s, price) for demand in demands]


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        (loads(0.5, 0.5), 2),
        (loads(0.6, 0.6), 3),
        (loads(0.0), 0),
        (loads(0.5, backlog_s=5), 2),  # half a replica more empties it in time
        ([], 0),
    ],
)
def test_work_that_arrives_and_that_waits_is_shared_at_the_target(
    given: list[ReplicaLoad], needed: int
) -> None:
    assert replicas_needed(given, BOUNDS) == needed


def test_a_price_above_the_worth_of_a_replica_starts_one_and_half_of_it_keeps_it() -> None:
    bounds = ScalingBounds(least=1, most=8, worth=2.0)
    assert replicas_needed(loads(0.1, 0.1, price=2.5), bounds) == 3
    assert replicas_needed(loads(0.1, 0.1, price=1.5), bounds) == 2
    assert replicas_needed(loads(0.1, 0.1, price=0.5), bounds) == 1


def test_up_at_once_and_within_bounds() -> None:
    assert decide(loads(0.9, 0.9), 2, None, 0.0, BOUNDS) == Scaling(4)
    assert decide(loads(9.0), 1, None, 0.0, BOUNDS) == Scaling(8)
    # a target outside bounds that were changed meanwhile is brought back although not all replicas report
    assert decide(loads(0.1, 0.1), 10, None, 0.0, BOUNDS) == Scaling(8)
    assert decide([], 0, None, 0.0, BOUNDS) == Scaling(1)


def test_down_one_at_a_time_after_calm() -> None:
    quiet = loads(0.1, 0.1, 0.1)
    first = decide(quiet, 3, None, 100.0, BOUNDS)
    assert first == Scaling(3, 100.0)
    assert decide(quiet, 3, first, 159.0, BOUNDS) == Scaling(3, 100.0)
    second = decide(quiet, 3, first, 160.0, BOUNDS)
    assert second == Scaling(2, 160.0)
    # the calm begins anew, also after a time of load
    assert decide(loads(0.1, 0.1), 2, second, 161.0, BOUNDS) == Scaling(2, 160.0)
    assert decide(loads(0.5, 0.5), 2, second, 200.0, BOUNDS) == Scaling(2)


def test_none_is_taken_away_while_one_does_not_report() -> None:
    assert decide(loads(0.1, 0.1), 3, Scaling(3, 0.0), 1e6, BOUNDS) == Scaling(3)


@pytest.mark.parametrize(
    "wrong", [{"least": 0}, {"least": 3, "most": 2}, {"target_demand": 0}, {"clear_s": 0}, {"calm_s": -1}]
)
def test_wrong_bounds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"is above 0|<="):
        ScalingBounds(**{"least": 1, "most": 2, **wrong})  # type: ignore[arg-type]
