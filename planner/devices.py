"""Descriptions of machines: devices, their memories and measured speeds.

measure/machine creates a description of the current machine. To plan for another machine, it is read from a
YAML file (planner/machines has three). Budgets like `gpu0=200MB,cpu=1GB` limit how much of a memory a plan
may use.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict, read_shipped
from polyrec.models.runtimes.registry import RuntimeName
from polyrec.models.tiers.tier_settings import RemoteStore

Bytes = Annotated[int, Field(ge=0)]
Real = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

MACHINES = Path(__file__).parent / "machines"

UNITS = {"": 1, "B": 1} | {
    f"{prefix}{infix}B": base**power
    for power, prefix in enumerate("KMGTP", 1)
    for infix, base in (("", 1000), ("I", 1024))
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-z]*)")
_PLACE = re.compile(r"(gpu|accelerator)([0-9]+)")


class MachineError(PolyrecError):
    """A machine description is missing or malformed, or lacks a named device."""


class Device(Strict):
    """A device that executes batches: a CPU (all its cores), a GPU or another accelerator.

    name: as in path names, such as `cpu` or `cuda:0`.
    lanes: maximum concurrent batches; for a CPU its usable cores.
    bandwidth: measured bytes/s of its memory.
    link, peers: bytes/s from host memory, and from the memory of other devices by name.
    flops: measured FLOP/s of fp32 matrix products on one lane.
    gathers: rows of 64 bytes that one lane reads per second from random places in memory.
    numa: NUMA nodes of its cores.
    caches: bytes by level; for L3, those of one sharing domain.
    vector: SIMD instruction sets, widest first.
    runtimes: runtimes found to work here; `onnx` stands for the device's execution provider.
    """

    name: str
    kind: Literal["cpu", "gpu", "accelerator"]
    lanes: Count
    memory_bytes: Bytes
    bandwidth: Real | None = None
    link: Real | None = None
    peers: dict[str, Real] = Field(default_factory=dict)
    flops: Real | None = None
    gathers: Real | None = None
    numa: Count = 1
    caches: dict[str, Bytes] = Field(default_factory=dict)
    vector: tuple[str, ...] = ()
    runtimes: tuple[RuntimeName, ...] = ()
    description: str = ""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None


class Remote(Strict):
    """A remote store of rows.

    latency_s: round trip of a batch's request, whatever its number of rows.
    bandwidth: bytes/s of rows in large answers.
    """

    store: RemoteStore
    latency_s: Real
    bandwidth: Real


class Machine(Strict):
    """Devices, disk and remote store of a machine.

    disk_bandwidth: bytes/s of long reads.
    disk_latency_s: seconds of one 4 KiB read.
    remote: store for rows that fit neither memory nor disk.
    """

    name: str
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    disk_bytes: Bytes | None = None
    disk_bandwidth: Real | None = None
    disk_latency_s: Real | None = None
    remote: Remote | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> Machine:
        names = [d.name for d in self.devices]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"device '{name}' is described twice")
        return self

    def device(self, name: str) -> Device:
        """Finds a device by name, or by kind and number: `gpu0` is the first GPU. Raises MachineError."""
        for device in self.devices:
            if device.name == name:
                return device
        if found := _PLACE.fullmatch(name):
            same = [d for d in self.devices if d.kind == found[1]]
            if int(found[2]) < len(same):
                return same[int(found[2])]
        known = ", ".join(d.name for d in self.devices)
        raise MachineError(f"machine '{self.name}' has no device '{name}'; it has {known}")


def load_machine(name: str | Path, base: Machine | None = None) -> Machine:
    """Reads a machine from a YAML file, or from planner/machines by name. Raises MachineError.

    base: a machine whose figures a file without devices overrides.
    """

    def complete(raw: dict[str, Any], file: Path) -> dict[str, Any]:
        if base is not None and "devices" not in raw:
            return base.model_dump() | _with_sizes(raw)
        return _with_sizes({"name": file.stem, **raw})

    return read_shipped(Machine, name, "machine", MACHINES, MachineError, complete)


def parse_bytes(text: str) -> int:
    """Parses sizes like `200MB`, `1.5 GiB` or `4096`; KB, MB ... are powers of 1000, KiB ... of 1024.

    Raises MachineError.
    """
    found = _SIZE.fullmatch(text.strip())
    unit: int | None = None if found is None else UNITS.get(found[2].upper())
    if found is None or unit is None:
        raise MachineError(f"'{text}' is not a size; write it like 200MB, 1.5GB or 4GiB")
    return int((Decimal(found[1]) * unit).to_integral_value())


def parse_memory(text: str, machine: Machine) -> dict[str, int]:
    """Parses budgets like `gpu0=200MB,cpu=1GB` to bytes by device name; `disk` is the machine's disk.

    Raises MachineError for an unknown or repeated device, or a bad size.
    """
    budgets: dict[str, int] = {}
    for part in text.split(","):
        given, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals or not given or not size:
            raise MachineError(f"memory '{part.strip()}': write DEVICE=SIZE, like cpu=1GB,gpu0=200MB")
        name = "disk" if given == "disk" else machine.device(given).name
        if name in budgets:
            raise MachineError(f"memory '{text}': device '{name}' is given twice")
        try:
            budgets[name] = parse_bytes(size)
        except MachineError as e:
            raise MachineError(f"memory of '{given}': {e}") from None
    return budgets


def _with_sizes(raw: dict[str, Any]) -> dict[str, object]:
    """Converts sizes like `32GB` in a description to bytes."""

    def read(where: str, given: dict[str, Any], *keys: str) -> dict[str, object]:
        return {k: _size(f"{where}{k}", v) if k in keys else v for k, v in given.items()}

    def device(where: str, given: object) -> object:
        if not isinstance(given, dict):
            return given
        sized = read(where, given, "memory_bytes", "bandwidth", "link")
        if isinstance(caches := given.get("caches"), dict):
            sized["caches"] = read(f"{where}caches.", caches, *caches)
        return sized

    sized = read("", raw, "disk_bytes", "disk_bandwidth")
    if isinstance(devices := raw.get("devices"), list):
        sized["devices"] = [device(f"devices.{i}.", d) for i, d in enumerate(devices)]
    if isinstance(remote := raw.get("remote"), dict):
        sized["remote"] = read("remote.", remote, "bandwidth")
    return sized


def _size(where: str, value: object) -> object:
    """Converts a size to bytes. where: its key, for messages. Raises MachineError."""
    if not isinstance(value, str):
        return value
    try:
        return parse_bytes(value)
    except MachineError as e:
        raise MachineError(f"{where}: {e}") from None
