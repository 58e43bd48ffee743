"""Predicted read times: a line by misses, a tail, and forgetting."""

import numpy as np
import pytest

from polyrec.planner.routing.latency.read_times import FIRST_TAIL, ReadSeconds, ReadTimes
from polyrec.planner.routing.query import Misses


def learned(seed: int = 0, reads: int = 4000, factor: float = 1.0) -> ReadTimes:
    """Reads of 1 to 99 pages that take 100 us and 10 us a page, with lognormal noise."""
    random = np.random.default_rng(seed)
    times = ReadTimes()
    for i, pages in enumerate(random.integers(1, 100, reads).tolist()):
        seconds = factor * (1e-4 + 1e-5 * pages) * float(np.exp(0.3 * random.normal()))
        times.observe(Misses(disk=pages), ReadSeconds(disk=seconds))
        if i % 200 == 199:
            times.tick(0.1)
    return times


def test_the_tail_follows_the_misses():
    times = learned()
    for pages in (1, 10, 99):
        tail_s = (1e-4 + 1e-5 * pages) * np.exp(0.3 * 2.33)
        assert times.tail_s(Misses(disk=pages)) == pytest.approx(tail_s, rel=0.4)


def test_about_one_read_in_a_hundred_is_longer_than_predicted():
    times, random, longer = learned(), np.random.default_rng(1), 0
    for pages in random.integers(1, 100, 5000).tolist():
        seconds = (1e-4 + 1e-5 * pages) * float(np.exp(0.3 * random.normal()))
        longer += seconds > times.tail_s(Misses(disk=pages))
        times.observe(Misses(disk=pages), ReadSeconds(disk=seconds))
    assert 20 < longer < 120


def test_nothing_is_predicted_before_the_first_read_and_for_a_tier_without_one():
    assert ReadTimes().tail_s(Misses(5, 5)) == 0.0
    assert learned().tail_s(Misses(remote=7)) == 0.0


def test_a_query_waits_for_its_slowest_tier():
    times = learned()
    times.observe(Misses(remote=3), ReadSeconds(remote=0.5))
    assert times.tail_s(Misses(50, 3)) == times.tail_s(Misses(remote=3)) > times.tail_s(Misses(50))


def test_unconfirmed_read_times_fade_within_seconds():
    times = learned(factor=100.0)
    before = times.tail_s(Misses(50))
    for _ in range(100):
        times.tick(0.1)
    assert times.tail_s(Misses(50)) < 0.05 * before
    for _ in range(1000):
        times.tick(0.1)
    assert times.tail_s(Misses(50)) == 0.0


def test_confirmed_read_times_stay():
    times = ReadTimes()
    # few, as the tail would grow to make up for a line that fades
    for _ in range(10):
        times.observe(Misses(disk=50), ReadSeconds(disk=0.01))
        times.tick(0.1)
    assert times.tail_s(Misses(disk=50)) == pytest.approx(0.01 * np.exp(FIRST_TAIL), rel=0.02)


def test_a_slower_disk_is_learned_and_forgotten():
    times, slow = learned(), learned(factor=10.0)
    for misses in (Misses(10), Misses(90)):
        assert slow.tail_s(misses) == pytest.approx(10 * times.tail_s(misses), rel=0.2)
    for _ in range(3000):
        slow.observe(Misses(10), ReadSeconds(2e-4))
        slow.observe(Misses(50), ReadSeconds(6e-4))
        slow.tick(0.01)
    assert slow.tail_s(Misses(50)) < 2e-3
