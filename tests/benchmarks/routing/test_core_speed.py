from __future__ import annotations

import os
import time
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.routing.core_speed import CoreSpeedMonitor, MeasuredSlowdown, between, smoothed
from polyrec.loadtest.drivers.connection import LoadError


@given(
    at=st.lists(st.floats(0, 100), min_size=1, max_size=20, unique=True),
    begin=st.floats(-10, 110),
    length=st.floats(0, 50),
)
def test_the_samples_of_a_period_or_the_nearest(at: list[float], begin: float, length: float) -> None:
    at = sorted(at)
    samples = np.stack((np.array(at), np.arange(len(at), dtype=np.float64)), axis=1)
    inside = [t for t in at if begin <= t < begin + length]
    before = [t for t in at if t < begin][-1:]
    assert between(samples, begin, begin + length)[:, 0].tolist() == (inside or before or at[:1])


@given(st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=50))
def test_a_single_outlier_does_not_change_the_speed(took: list[float]) -> None:
    found = smoothed(np.array(took))
    around = [took[max(0, i - 1) : i + 2] for i in range(len(took))]
    # at an end the sample itself counts twice
    around[0], around[-1] = [took[0], *around[0]], [*around[-1], took[-1]]
    if len(took) == 1:
        around = [[took[0]] * 3]
    assert found.tolist() == [sorted(near)[1] for near in around]


def may() -> bool:
    try:
        before = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, before, os.sched_param(0))
    except PermissionError:
        return False
    return True


def test_a_core_is_measured_from_beginning_to_end() -> None:
    if not may():
        pytest.skip("the real-time class takes root")
    with CoreSpeedMonitor(os.sched_getaffinity(0)) as monitor:
        begin_s = perf_counter()
        time.sleep(0.3)
        end_s = perf_counter()
        unit_s = monitor.unit_s(begin_s, end_s)
        slowdown = monitor.slowdown(begin_s, end_s, unit_s)
        assert monitor.unit_s(begin_s, end_s, 0.1) <= unit_s <= monitor.unit_s(begin_s, end_s, 0.9)
        process = monitor._process
        assert process is not None
    assert unit_s > 0
    assert slowdown.at_s.size > 1
    assert 0 <= slowdown.at_s[0] <= slowdown.at_s[-1] <= end_s - begin_s
    assert process.poll() is not None
    assert not monitor._file.exists()


def test_missing_permission_is_an_error_of_one_line() -> None:
    if may():
        pytest.skip("root may")
    with pytest.raises(LoadError, match="without root"), CoreSpeedMonitor(os.sched_getaffinity(0)):
        pass


@pytest.mark.parametrize(
    ("at_s", "factor", "why"),
    [
        ([], [], "0 moments"),
        ([0.0, 1.0], [1.0], "2 moments with 1 factors"),
        ([1.0, 0.0], [1.0, 1.0], "ascend"),
        ([0.0], [0.0], "positive"),
        ([0.0], [float("nan")], "positive"),
    ],
)
def test_a_bad_slowdown_raises_value_error(at_s: list[float], factor: list[float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MeasuredSlowdown(np.array(at_s), np.array(factor))


def test_a_slowdown_holds_from_its_moment_on() -> None:
    slowdown = MeasuredSlowdown(np.array([0.0, 0.2, 0.4]), np.array([1.0, 2.0, 0.5]))
    assert [slowdown(at_s) for at_s in (-1.0, 0.0, 0.1, 0.2, 0.3, 9.0)] == [1.0, 1.0, 1.0, 2.0, 2.0, 0.5]
