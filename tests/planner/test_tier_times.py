from __future__ import annotations

import pytest

from polyrec.planner.tier_times import TIMES, BatchReads, TierCost, probability_of_any

COST = TierCost(
    batch_s=1e-4,
    lookup_s=1e-8,
    below_batch_s=5e-5,
    below_s=1e-6,
    wait_s=2e-4,
    read_s=5e-6,
    ahead_batch_s=3e-5,
    ahead_s=6e-6,
    remote_batch_s=3e-4,
    remote_s=2e-6,
)


def test_every_coefficient_counts() -> None:
    batch = BatchReads(lookups=100, below=50, reads=10, rounds=1.0, remote=5)
    for name in TIMES:
        without = COST.model_copy(update={name: 0.0})
        ahead = name.startswith("ahead")
        assert without.seconds(batch, ahead) < COST.seconds(batch, ahead)


def test_reads_run_side_by_side_so_a_batch_waits_for_them_once() -> None:
    few, many = (COST.seconds(BatchReads(100, 50, n, 1.0)) for n in (10, 20))
    assert many - few == pytest.approx(10 * 5e-6)


def test_a_batch_whose_reads_were_started_ahead_waits_for_none() -> None:
    batch = BatchReads(lookups=100, below=50, reads=10, rounds=1.0)
    waits, ahead = COST.seconds(batch), COST.seconds(batch, ahead=True)
    assert waits - ahead == pytest.approx(2e-4 + 10 * 5e-6 - 3e-5 - 10 * 6e-6)


def test_remote_rows_come_in_one_request() -> None:
    none, some, more = (COST.seconds(BatchReads(100, remote=n)) for n in (0.0, 50.0, 60.0))
    assert some - none == pytest.approx(3e-4 + 50 * 2e-6)
    assert more - some == pytest.approx(10 * 2e-6)


def test_a_batch_that_seldom_reads_waits_seldom() -> None:
    assert probability_of_any(0.0) == 0.0
    assert probability_of_any(0.1) == pytest.approx(0.095, abs=1e-3)
    assert probability_of_any(20.0) == pytest.approx(1.0)
