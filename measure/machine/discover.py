"""Discovers this machine: devices, runtimes, memory, and their measured speed.

A runtime counts only after it has executed something on a device, because ONNX Runtime lists providers that
it cannot load, and silently falls back to the CPU.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrec.measure.machine.cpu import cpu_device
from polyrec.measure.machine.disk import Disk, measure_disk
from polyrec.measure.machine.gpu import gpu_devices
from polyrec.planner.devices import Device, Machine, MachineError


@dataclass(frozen=True, slots=True)
class Inventory:
    """The machine, and runtimes that are installed but do not work: name -> reason."""

    machine: Machine
    unusable: dict[str, str]


def discover(folder: str | Path = ".", measure: bool = True) -> Inventory:
    """Discovers this machine. With `measure` this takes several seconds and 300 MB; otherwise speeds are
    None.

    folder: on the disk for tier files.
    """
    unusable: dict[str, str] = {}
    devices: list[Device] = [cpu_device(measure, unusable), *gpu_devices(measure, unusable)]
    found: Disk = measure_disk(Path(folder), measure)
    machine = Machine(
        name=socket.gethostname() or "this machine",
        devices=tuple(devices),
        disk_bytes=found.free_bytes,
        disk_bandwidth=found.bandwidth,
        disk_latency_s=found.latency_s,
    )
    return Inventory(machine, unusable)


def chosen(machine: Machine, names: str) -> Sequence[Device]:
    """Returns the devices named in a list such as `cpu,gpu0`, or all for `auto`. Raises MachineError."""
    if names == "auto":
        return machine.devices
    found = [machine.device(name.strip()) for name in names.split(",")]
    for device in found:
        if found.count(device) > 1:
            raise MachineError(f"--devices '{names}': device '{device.name}' is named twice")
    return found
