from __future__ import annotations

import os
from pathlib import Path

import onnxruntime as ort
import pytest
import torch

from polyrec.measure.machine.discover import chosen, discover
from polyrec.measure.machine.disk import measure_disk
from polyrec.measure.machine.speed import best_rate, copy_bandwidth, gathers, products
from polyrec.planner.devices import MachineError


def test_this_machine_is_described_without_measuring(tmp_path: Path) -> None:
    machine = discover(tmp_path, measure=False).machine
    cpu = machine.device("cpu")
    assert 1 <= cpu.lanes <= len(os.sched_getaffinity(0))
    assert cpu.memory_bytes > 2**28
    assert {"onnx", "torch"} <= set(cpu.runtimes)
    assert cpu.bandwidth is None
    assert machine.disk_bytes
    assert machine.disk_bandwidth is None


def test_a_provider_that_is_listed_but_falls_back_is_not_usable(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("this onnxruntime lists no CUDA")
    found = discover(tmp_path, measure=False)
    assert [d.name for d in found.machine.devices] == ["cpu"]
    assert "onnx on cuda:0" in found.unusable


@pytest.mark.gpu
def test_a_gpu_is_measured(tmp_path: Path) -> None:
    device = discover(tmp_path).machine.device("gpu0")
    assert "torch" in device.runtimes
    assert device.bandwidth
    assert device.link
    assert device.bandwidth > device.link


def test_devices_are_chosen_by_name(tmp_path: Path) -> None:
    machine = discover(tmp_path, measure=False).machine
    assert list(chosen(machine, "auto")) == list(machine.devices)
    assert [d.name for d in chosen(machine, " cpu ")] == ["cpu"]
    with pytest.raises(MachineError, match="no device 'gpu7'"):
        chosen(machine, "cpu,gpu7")
    with pytest.raises(MachineError, match="'cpu' is named twice"):
        chosen(machine, "cpu,cpu")


def test_a_disk_is_read_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    found = measure_disk(tmp_path / "not" / "there", measure=True)
    assert found.free_bytes
    assert found.bandwidth
    assert found.latency_s
    # a page takes no longer than reading all of the file
    assert 0 < found.latency_s < 10
    assert list(tmp_path.iterdir()) == []


def test_speeds_are_of_the_work_done() -> None:
    calls: list[int] = []
    assert best_rate(lambda: calls.append(0)) <= len(calls) / 0.03
    # the slowest machine that anyone would serve from, and far beyond the fastest
    assert 1e8 < copy_bandwidth(1, 2**26) < 1e13
    assert 1e4 < gathers(2**26) < 1e11
    assert 1e8 < products(onnx=True) < 1e14
