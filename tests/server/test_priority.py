"""The waits of a thread, as the kernel counts them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from polyrec.server.priority import ThreadWaits


def counted_s() -> float:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def test_the_waits_between_two_calls_are_what_the_kernel_counted() -> None:
    low_s = counted_s()
    waits = ThreadWaits()
    high_s = counted_s()
    total_s = 0.0
    for _ in range(20):
        os.sched_yield()
        total_s += waits.since_last_s()
    end_s = counted_s()
    assert total_s <= end_s - low_s + 1e-9
    total_s += waits.since_last_s()
    assert total_s >= end_s - high_s - 1e-9
    assert total_s == pytest.approx(end_s - low_s, abs=counted_s() - end_s + high_s - low_s + 1e-9)


def test_of_a_pause_no_more_is_a_wait_than_the_kernel_counted() -> None:
    low_s = counted_s()
    waits = ThreadWaits()
    for _ in range(20):
        os.sched_yield()
    assert waits.within_s(0.0) == 0.0
    assert waits.within_s(1e9) <= counted_s() - low_s
    assert waits.within_s(0.001) <= 0.001
