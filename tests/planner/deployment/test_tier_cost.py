from __future__ import annotations

import pytest

from polyrec.planner.deployment.tier_cost import PAGE, MissCost, Tier, tiers_below
from tests.planner.planning import machine


def test_a_look_up_costs_latency_and_the_bytes_of_its_page() -> None:
    disk = Tier("disk", 1e-4, 1e9, PAGE)
    assert disk.seconds(100) == pytest.approx(1e-4 + 4096e-9)
    assert disk.seconds(10_000) == pytest.approx(1e-4 + 10_000e-9)


def test_a_batch_waits_for_each_of_its_misses() -> None:
    beyond = MissCost(0.25, 1e-4)
    assert beyond.median(40) == pytest.approx(10 * 1e-4)
    # 10 misses on average: 99 of 100 batches have at most 10 + 2.33 sqrt(10)
    assert beyond.tail(40) == pytest.approx((10 + 2.326 * 10**0.5) * 1e-4)


def test_nothing_missing_costs_nothing() -> None:
    assert MissCost(0.0, 1.0).tail(100) == 0.0


def test_rows_go_from_a_gpu_to_the_host_and_from_there_to_the_disk() -> None:
    on = machine(gpu=10**9, disk=True)
    below = [[tier.name for tier in tiers_below(on.device(name), on)] for name in ("cuda:0", "cpu")]
    assert below == [["host"], ["disk"]]


def test_without_a_disk_there_is_nothing_below_the_host() -> None:
    on = machine()
    assert not tiers_below(on.device("cpu"), on)
