"""Waits for a processor: what the kernel counts, and those that still last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.rollout.lane_waits import LaneWaits, WaitClock
from tests.server.rollout.conftest import Trial

READY, BLOCKED = True, False
MS = 1_000_000


def schedstat(ran_ms: int, waited_ms: int, times: int) -> bytes:
    return b"%d %d %d\n" % (ran_ms * MS, waited_ms * MS, times)


def test_waits_that_ended_are_the_kernels_and_one_that_lasts_is_added_until_then() -> None:
    clock = WaitClock()
    looks = [
        (0.000, (5, 1, 1), BLOCKED, 0.001),
        (0.040, (5, 1, 1), BLOCKED, 0.001),  # it waits for a batch, not for a processor
        (0.050, (5, 1, 1), READY, 0.011),
        (0.080, (5, 1, 1), READY, 0.041),
        (0.090, (6, 43, 2), READY, 0.043),  # it ran: the kernel knows more exactly
        (0.100, (16, 43, 2), READY, 0.043),  # it runs
    ]
    for now_s, figures, ready, waited_s in looks:
        assert clock.sample(now_s, schedstat(*figures), lambda ready=ready: ready) == pytest.approx(waited_s)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50)), max_size=20))
def test_samples_at_any_time_find_the_waits_of_a_thread(cycles: list[tuple[int, int, int]]) -> None:
    """A thread is blocked, waits, and runs; the kernel adds a wait when it ends. One sample a millisecond."""
    clock = WaitClock()
    ran = waited = lasting = times = now_ms = 0
    for blocked_ms, wait_ms, run_ms in cycles:
        for kind in "b" * blocked_ms + "w" * wait_ms + "r" * run_ms:
            now_ms += 1
            lasting += kind == "w"
            if kind == "r":
                ran, times, waited, lasting = ran + 1, times + (lasting > 0), waited + lasting, 0
            found = clock.sample(now_ms / 1e3, schedstat(ran, waited, times), lambda kind=kind: kind != "b")
            # the first millisecond is not seen where the thread ran at the sample before
            assert (waited + lasting - 1) / 1e3 - 1e-9 <= found <= (waited + lasting) / 1e3 + 1e-9


def test_a_canarys_waits_are_what_the_kernel_counts_for_its_process(trial: Trial, plan_of: Any) -> None:
    trial.start(plan_of(1.0), share=0.5, shadow=0)
    rollout = trial.engine.rollout
    assert rollout is not None
    (lane,) = rollout.canary.serving.lanes
    inline = rollout.stable.serving.lanes[0]
    waits = LaneWaits([lane, inline])
    file = Path(f"/proc/{lane.pid}/schedstat")
    low = int(file.read_text().split()[1])
    seen = waits.sample(0.0).waits
    high = int(file.read_text().split()[1])
    assert low - 1 <= seen[0] * 1e9 <= high + 1
    assert seen[1] == 0.0
    assert waits.sample(0.0).waits == seen
    assert len(rollout.canary.waited()) == 1
    assert rollout.stable.waited() == ()
    trial.call("rollback")
