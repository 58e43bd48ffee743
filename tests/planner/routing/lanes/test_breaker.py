"""The breaker opens at once, closes after a good probe, and waits longer after each failure."""

import pytest

from polyrec.planner.routing.lanes.breaker import (
    MAX_BROKEN_WAIT_S,
    MAX_WAIT_S,
    Breaker,
    BreakerState,
    overdue_at_s,
)


def test_a_tripped_lane_waits_and_a_good_probe_closes_it():
    breaker = Breaker()
    breaker.trip(1.0)
    assert breaker.open
    assert not breaker.ready(1.0)
    assert breaker.ready(breaker.retry_s)
    breaker.probed(1e-3, 1e-3, 2.0)
    assert breaker.state is BreakerState.CLOSED


def test_a_bad_probe_waits_longer_each_time_up_to_a_limit():
    for broken, max_s in ((False, MAX_WAIT_S), (True, MAX_BROKEN_WAIT_S)):
        breaker = Breaker()
        waits = []
        for _ in range(12):
            breaker.trip(0.0, broken)
            waits.append(breaker.retry_s)
        assert waits == sorted(waits)
        assert waits[0] < waits[3]
        assert waits[-1] == max_s


def test_a_slow_probe_keeps_the_lane_out():
    breaker = Breaker()
    breaker.trip(0.0)
    breaker.probed(1.0, 1e-3, 1.0)
    assert breaker.open


def test_a_batch_is_overdue_in_time_for_another_lane_but_not_before_twice_its_tail():
    assert overdue_at_s(0.0, 0.010, 1.0) == pytest.approx(0.035)
    assert overdue_at_s(0.0, 0.010, 0.025) == 0.025
    assert overdue_at_s(0.0, 0.010, 0.001) == 0.020
