"""Machines described in files, and budgets in text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.devices import (
    MACHINES,
    UNITS,
    Device,
    Machine,
    MachineError,
    load_machine,
    parse_bytes,
    parse_memory,
)

TWO = Machine(
    name="two",
    devices=(
        Device(name="cpu", kind="cpu", lanes=2, memory_bytes=10**9),
        Device(name="cuda:0", kind="gpu", lanes=1, memory_bytes=10**8),
        Device(name="cuda:1", kind="gpu", lanes=1, memory_bytes=10**8),
        Device(name="npu", kind="accelerator", lanes=1, memory_bytes=10**7),
    ),
)


def written(folder: Path, text: str) -> Path:
    file = folder / "box.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", sorted(f.stem for f in MACHINES.glob("*.yaml")))
def test_shipped_machines_are_read_by_name(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    assert machine.device("cpu").memory_bytes >= 10**9
    # a disk is described whole or not at all
    assert (
        (machine.disk_bytes is None) == (machine.disk_bandwidth is None) == (machine.disk_latency_s is None)
    )


def test_mp_recs_small_machine_has_the_papers_memories() -> None:
    machine = load_machine("small-accelerator")
    assert [d.memory_bytes for d in machine.devices] == [10**9, 200 * 10**6]


def test_a_file_without_devices_changes_the_profiled_machine(tmp_path: Path) -> None:
    profiled = load_machine("small-accelerator")
    file = written(tmp_path, "remote: {store: {url: 'redis://store'}, latency_s: 0.0003, bandwidth: 200MB}")
    machine = load_machine(file, profiled)
    assert machine.remote is not None
    assert machine.model_copy(update={"remote": None}) == profiled
    with pytest.raises(MachineError, match="devices: Field required"):
        load_machine(file)


def test_sizes_in_a_file_may_be_text_or_numbers(tmp_path: Path) -> None:
    text = (
        "devices: [{name: cpu, kind: cpu, lanes: 4, memory_bytes: 2GiB, bandwidth: 5e9, caches: {L2: 1MiB}}]"
        "\n"
        "remote: {store: {url: 'redis://store:6379', fill: true}, latency_s: 0.0003, bandwidth: 200MB}"
    )
    machine = load_machine(written(tmp_path, text))
    assert machine.name == "box"
    assert machine.devices[0].memory_bytes == 2 * 2**30
    assert machine.devices[0].bandwidth == 5e9
    assert machine.devices[0].caches == {"L2": 2**20}
    assert machine.remote is not None
    assert machine.remote.bandwidth == 2e8
    assert machine.remote.store.fill


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "must be a mapping, not list"),
        ("", "must be a mapping, not NoneType"),
        ("devices: [", "is not YAML"),
        ("devices: []", "devices"),
        ("devices: [{name: cpu, kind: cpu, lanes: 4}]", "memory_bytes"),
        ("devices: [{name: cpu, kind: cpu, lanes: 0, memory_bytes: 1}]", "lanes"),
        (
            "devices: [{name: cpu, kind: cpu, lanes: 1, memory_bytes: 2 potatoes}]",
            "devices.0.memory_bytes: '2 potatoes' is not a size",
        ),
        ("devices: [{name: cpu, kind: cpu, lanes: 1, memory_bytes: 1, speed: 3}]", "speed"),
        ("devices: [3]", "devices.0"),
        (
            "{devices: [{name: cpu, kind: cpu, lanes: 1, memory_bytes: 1}], "
            "remote: {store: {url: 'http://store'}, latency_s: 1, bandwidth: 1}}",
            "remote.store.url",
        ),
        (
            "devices: [{name: a, kind: cpu, lanes: 1, memory_bytes: 1}, "
            "{name: a, kind: gpu, lanes: 1, memory_bytes: 1}]",
            "device 'a' is described twice",
        ),
    ],
)
def test_a_wrong_description_raises_one_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(MachineError, match=r"machine '.*box.yaml'") as error:
        load_machine(written(tmp_path, text))
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_names_the_shipped_machines(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"no machine file .*cpu8"):
        load_machine(tmp_path / "none.yaml")


def test_devices_are_found_by_name_or_by_kind_and_number() -> None:
    assert TWO.device("gpu1").name == "cuda:1"
    assert TWO.device("cuda:0").name == "cuda:0"
    assert TWO.device("accelerator0").name == "npu"
    with pytest.raises(MachineError, match=r"no device 'gpu2'; it has cpu, cuda:0, cuda:1, npu"):
        TWO.device("gpu2")


@given(st.integers(0, 10**12), st.sampled_from(sorted(UNITS)), st.booleans(), st.sampled_from(["", " "]))
def test_sizes_are_read_in_every_unit(number: int, unit: str, lower: bool, space: str) -> None:
    assert parse_bytes(f"{number}{space}{unit.lower() if lower else unit}") == number * UNITS[unit]


def test_units_of_1000_and_of_1024_differ() -> None:
    assert parse_bytes("1.5GB") == 1_500_000_000
    assert parse_bytes("1.5GiB") == 3 * 2**29


def test_budgets_are_given_by_the_devices_own_names() -> None:
    assert parse_memory("gpu0=200MB, cpu=1GB,disk=2TB", TWO) == {
        "cuda:0": 200 * 10**6,
        "cpu": 10**9,
        "disk": 2 * 10**12,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write DEVICE=SIZE"),
        ("cpu", "memory 'cpu': write DEVICE=SIZE"),
        ("cpu=", "memory 'cpu=': write DEVICE=SIZE"),
        ("cpu=1GB,", "write DEVICE=SIZE"),
        ("tpu0=1GB", "no device 'tpu0'; it has cpu"),
        ("gpu0=1GB,cuda:0=1GB", "device 'cuda:0' is given twice"),
        ("cpu=lots", "memory of 'cpu': 'lots' is not a size"),
        ("cpu=-1GB", "memory of 'cpu': '-1GB' is not a size"),
        ("cpu=infGB", "'infGB' is not a size"),
    ],
)
def test_a_wrong_budget_raises_one_line(text: str, message: str) -> None:
    with pytest.raises(MachineError) as error:
        parse_memory(text, TWO)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
