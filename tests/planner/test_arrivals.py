"""Arrival times have the requested mean rate and shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.traffic import Arrivals, TrafficError

ALL = [
    Arrivals(),
    Arrivals(kind="bursty", factor=4, period_s=2, burst_s=0.5),
    Arrivals(kind="diurnal", factor=4, period_s=10),
    Arrivals(kind="step", factor=5, start_s=4, burst_s=2),
]


@given(arrivals=st.sampled_from(ALL), seed=st.integers(0, 2**32), rate=st.floats(0.1, 500))
def test_times_ascend_within_the_requested_time(arrivals, seed, rate):
    times = arrival_times(arrivals, rate, 7.0, np.random.default_rng(seed))
    assert (np.diff(times) >= 0).all()
    assert times.size == 0 or (times[0] >= 0 and times[-1] <= 7.0)


@pytest.mark.parametrize("arrivals", ALL[:3], ids=lambda a: a.kind)
def test_mean_rate_is_the_requested_one(arrivals):
    counts = [
        arrival_times(arrivals, 200.0, 20.0, np.random.default_rng(seed)).size / 20.0 for seed in range(60)
    ]
    assert np.mean(counts) == pytest.approx(200.0, rel=0.06)


def test_poisson_gaps_are_exponential():
    gaps = np.diff(arrival_times(Arrivals(), 1000.0, 50.0, np.random.default_rng(3)))
    assert gaps.mean() == pytest.approx(1e-3, rel=0.02)
    assert gaps.std() == pytest.approx(1e-3, rel=0.03)


def test_bursts_make_counts_vary_more_than_poisson():
    counts = [
        np.histogram(arrival_times(a, 500.0, 60.0, np.random.default_rng(5)), bins=240)[0]
        for a in (ALL[0], ALL[1])
    ]
    steady, bursty = (c.var() / c.mean() for c in counts)
    assert steady < 1.6
    assert bursty > 5 * steady


def rate_at(arrivals, rate, times):
    """Queries a second expected at `times`."""
    if arrivals.kind == "diurnal":
        swing = 1 - 1 / arrivals.factor
        return rate * (1 - swing * np.cos(2 * np.pi * times / arrivals.period_s))
    inside = (times >= arrivals.start_s) & (times < arrivals.start_s + arrivals.burst_s)
    return rate * np.where(inside, arrivals.factor, 1.0)


@pytest.mark.parametrize("arrivals", ALL[2:], ids=lambda a: a.kind)
def test_rate_follows_its_shape(arrivals):
    times = arrival_times(arrivals, 5000.0, 10.0, np.random.default_rng(9))
    counts, edges = np.histogram(times, bins=20, range=(0, 10))
    inside = (edges[:-1, None] + np.linspace(0, 0.5, 50, endpoint=False)).ravel()
    expected = rate_at(arrivals, 5000.0, inside).reshape(20, 50).mean(1)
    assert counts / 0.5 == pytest.approx(expected, rel=0.1)


def test_a_trace_is_stretched_to_the_rate(tmp_path):
    file = tmp_path / "times.txt"
    file.write_text("10\n11\n13\n20\n")
    times = arrival_times(Arrivals(kind="trace", file=str(file)), 3.0, 60.0, np.random.default_rng(0))
    assert times.tolist() == pytest.approx([0, 0.1, 0.3, 1.0])


@pytest.mark.parametrize("content", ["a\n", "1\n", "3\n3\n", "nan\n1\n"])
def test_a_bad_trace_raises_one_line(tmp_path, content):
    file = tmp_path / "times.txt"
    file.write_text(content)
    with pytest.raises(TrafficError, match="trace") as caught:
        arrival_times(Arrivals(kind="trace", file=str(file)), 1.0, 1.0, np.random.default_rng(0))
    assert "\n" not in str(caught.value)


def test_a_missing_trace_raises():
    with pytest.raises(TrafficError, match="cannot read"):
        arrival_times(Arrivals(kind="trace", file="/none.txt"), 1.0, 1.0, np.random.default_rng(0))
