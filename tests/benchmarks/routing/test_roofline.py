from __future__ import annotations

import pytest

from benchmarks.routing.roofline import Assumed, Work, latency
from polyrec.planner.devices import Device
from polyrec.planner.profile import ProfileError

CPU = Device(name="cpu", kind="cpu", lanes=4, memory_bytes=1, flops=1e9, bandwidth=4e9, gathers=1e6)
GPU = Device(name="cuda:0", kind="gpu", lanes=1, memory_bytes=1, flops=1e12, bandwidth=1e12, link=1e9)
ASSUMED = Assumed(cpu_start_s=1e-4, accelerator_start_s=2e-4, tail=1.5)


def test_arithmetic_bounds_where_it_takes_longer() -> None:
    model = latency(Work(1e6, 0, 100, 0, 0), CPU, ASSUMED)
    assert model.median(64) == pytest.approx(1e-4 + 64e6 / 1e9)
    assert model.tail(64) == pytest.approx(1.5 * model.median(64))


def test_bytes_bound_where_they_take_longer_and_lanes_share_the_bandwidth() -> None:
    model = latency(Work(0, 1000, 100, 2, 0), CPU, ASSUMED)
    assert model.median(64) == pytest.approx(1e-4 + (1000 + 6400) / 1e9 + 128 / 1e6)


def test_ids_go_over_the_link_to_an_accelerator_alone() -> None:
    work = Work(1e6, 0, 0, 0, 1000)
    assert latency(work, GPU, ASSUMED).median(64) == pytest.approx(2e-4 + 64e6 / 1e12 + 64e3 / 1e9)
    assert latency(work, CPU, ASSUMED).median(64) == pytest.approx(1e-4 + 64e6 / 1e9)


def test_a_device_without_speeds_raises() -> None:
    with pytest.raises(ProfileError, match="device 'cpu' needs flops and bandwidth"):
        latency(Work(1, 1, 1, 1, 1), CPU.model_copy(update={"flops": None}), ASSUMED)
