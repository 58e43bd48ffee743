from __future__ import annotations

import numpy as np
import pytest

from benchmarks.stalls import AFTER, outside, stalls_of, watched


def test_a_stall_is_a_run_of_slow_pieces_and_a_single_one_is_none() -> None:
    at_s = 0.001 * np.arange(1, 101)
    spent_s = np.full(100, 2e-5)
    spent_s[10] = 2e-4
    spent_s[20:25] = spent_s[29:33] = 1e-4
    spent_s[70:] = 1e-4
    found = stalls_of(np.stack([at_s, spent_s], 1))
    # begins after the last quick piece; two that are close are one
    assert found == [pytest.approx((0.020, 0.033)), pytest.approx((0.070, 0.100))]
    assert stalls_of(np.empty((0, 2))) == []


def test_intervals_outside_are_those_that_touch_no_stall() -> None:
    random = np.random.default_rng(1)
    edges = np.sort(random.random(40)).reshape(-1, 2)
    edges[:, 1] = edges[:, 0] + (edges[:, 1] - edges[:, 0]) / 10
    stalls = [(float(start), float(end)) for start, end in edges]
    begun_s = random.random(500) * 1.2 - 0.1
    ended_s = begun_s + random.exponential(0.01, 500)
    right = [
        all(end < start or begun > stop + AFTER * (stop - start) for start, stop in stalls)
        for begun, end in zip(begun_s, ended_s, strict=True)
    ]
    assert 0 < sum(right) < 500
    np.testing.assert_array_equal(outside(stalls, begun_s, ended_s), right)
    assert outside([], begun_s, ended_s).all()


def test_the_watch_ends_with_its_context() -> None:
    with watched() as stalls:
        pass
    assert isinstance(stalls, list)
