"""Arrivals of requests: even streams are reconstructed from reading order; estimates stay within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.routing.admission.arrival import Arrival, ArrivalTimes

PAUSES_S = st.lists(st.floats(1e-4, 0.05), min_size=1, max_size=20)


def read(times: ArrivalTimes, now_s: float, count: int) -> list[Arrival]:
    """A round that reads `count` requests after a batch."""
    times.begin_reading(now_s, slept=False)
    arrivals = []
    for _ in range(count):
        times.count_request()
        arrivals.append(times.arrival())
    return arrivals


def steady(pause_s: float, count: int, rounds: int = 399) -> ArrivalTimes:
    """Rounds that each read `count` requests after a pause, and what is known after them."""
    times = ArrivalTimes()
    times.begin_reading(1.0, slept=True)
    for step in range(1, rounds + 1):
        read(times, 1.0 + pause_s * step, count)
    return times


@pytest.mark.parametrize("pause_s", [0.002, 0.02])
def test_the_arrivals_of_an_even_stream_are_found_by_their_place(pause_s: float) -> None:
    rate = 5000.0
    times, now_s, arrived = ArrivalTimes(), 1.0, 0
    times.begin_reading(now_s, slept=True)
    found, true = [], []
    for _ in range(500):
        now_s += pause_s
        count = int((now_s - 1.0) * rate) - arrived
        found = [arrival.likely_s for arrival in read(times, now_s, count)]
        true = [1.0 + (arrived + i + 0.5) / rate for i in range(count)]
        arrived += count
    assert found == pytest.approx(true, abs=0.05 * pause_s + 1 / rate)


@given(PAUSES_S, st.integers(1, 40), st.floats(1e-3, 0.1), st.booleans())
def test_a_budget_begins_between_the_last_look_and_now(pauses_s, count, budget_s, disturbed):
    times, now_s = ArrivalTimes(), 1.0
    times.begin_reading(now_s, slept=True)
    for pause_s in pauses_s:
        looked_s, now_s = now_s, now_s + pause_s
        starts = [each.budget_start_s(budget_s, now_s, disturbed) for each in read(times, now_s, count)]
        assert np.all(np.diff(starts) >= 0)
        assert looked_s <= starts[0]
        assert starts[-1] <= now_s
        if not disturbed and now_s - looked_s < budget_s:
            assert starts == [looked_s] * count


def test_only_a_disturbed_server_judges_the_age_of_requests_by_their_place():
    times = steady(0.004, 8)
    now_s = times.reading_since_s + 0.004
    arrivals = read(times, now_s, 8)
    ages_s = [now_s - each.budget_start_s(0.01, now_s, disturbed=True) for each in arrivals]
    assert ages_s == pytest.approx([0.004 - 0.0005 * (i + 0.5) for i in range(8)], abs=1e-4)
    assert [now_s - each.budget_start_s(0.01, now_s, disturbed=False) for each in arrivals] == [
        pytest.approx(0.004)
    ] * 8


@pytest.mark.parametrize("disturbed", [False, True])
def test_after_a_long_pause_only_the_latest_requests_have_time_left(disturbed):
    times = steady(0.01, 10)
    now_s = times.reading_since_s + 0.04
    left_s = [0.01 - (now_s - each.budget_start_s(0.01, now_s, disturbed)) for each in read(times, now_s, 40)]
    assert max(left_s[:28]) <= 0
    assert min(left_s[32:]) > 0


def test_request_that_wakes_the_loop_or_comes_alone_has_just_arrived():
    times = ArrivalTimes()
    times.begin_reading(1.0, slept=True)
    times.count_request()
    assert times.arrival().earliest_s == 1.0
    times.begin_reading(5.0, slept=True)
    times.count_request()
    assert times.arrival().earliest_s == 5.0
    (alone,) = read(times, 5.02, 1)
    assert alone.budget_start_s(0.01, 5.02, False) == 5.02


def test_a_client_that_waited_for_its_answer_sent_the_next_request_after_it():
    times = ArrivalTimes()
    times.begin_reading(1.0, slept=True)
    times.begin_reading(2.0, slept=False)
    times.count_request()
    assert times.arrival(1.5).earliest_s == 1.5
    assert times.arrival(1.995).budget_start_s(0.004, 2.0, False) >= 1.995


def test_a_budget_shorter_than_the_time_between_arrivals_begins_now():
    times = steady(0.01, 10, 99)
    now_s = times.reading_since_s + 0.01
    for each in read(times, now_s, 10):
        assert each.budget_start_s(1e-8, now_s, False) == now_s
        assert each.budget_start_s(0.002, now_s, False) < now_s
