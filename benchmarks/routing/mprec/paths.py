"""Models MP-Rec's paths on described machines: the cost of a representation on each device that holds it.

Devices are those of planner/machines/mprec-{large,tpu,ipu}.yaml, with the share of their data sheets' speeds
that is assumed achieved; representations are those of mprec_machines.py; latencies are rooflines
(roofline.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.routing.mprec_machines import DECODER, PublishedModel, cost, load_machine_of
from benchmarks.routing.roofline import Assumed, latency
from polyrec.planner.devices import Device
from polyrec.planner.routing.lanes.path import PathSpec

KINDS = ("table", "select", "dhe", "hybrid")
Name = Literal["gpu", "tpu", "ipu"]
ACCELERATORS: dict[Name, tuple[str, int]] = {
    "gpu": ("mprec-large", 1),
    "tpu": ("mprec-tpu", 4),
    "ipu": ("mprec-ipu", 4),
}
"""Machine, and number of its accelerator's chips; a TPU v3 board and an IPU-M2000 have four."""
CHIPS: dict[str, tuple[Name, int]] = {
    "V100": ("gpu", 1),
    "TPU v3 chip": ("tpu", 1),
    "TPU v3 board": ("tpu", 4),
    "GC200": ("ipu", 1),
    "IPU-M2000": ("ipu", 4),
    "IPU-POD16": ("ipu", 16),
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions besides the data sheets.

    flops, bandwidth: achieved share of the data sheet's. cpu_flops: factor on the CPU's. start_s,
    cpu_start_s: start time of a batch. link: factor on the speed from host to accelerator. differences:
    factor on the differences of accuracy. rows: mean rows of a query. decoder: hidden widths of DHE.
    """

    flops: float = 0.5
    cpu_flops: float = 1.0
    bandwidth: float = 0.5
    start_s: float = Assumed().accelerator_start_s
    cpu_start_s: float = Assumed().cpu_start_s
    link: float = 1.0
    differences: float = 1.0
    rows: float = 128.0
    decoder: tuple[int, ...] = DECODER


def accuracy(model: PublishedModel, kind: str, differences: float) -> float:
    """Returns the accuracy of a representation; select's is assumed halfway between table's and DHE's."""
    table = model.accuracy["table"]
    own = (table + model.accuracy["dhe"]) / 2 if kind == "select" else model.accuracy[kind]
    return table + differences * (own - table)


def devices_of(name: Name, chips: int, assumed: Assumptions) -> tuple[Device, Device]:
    """Returns the machine's CPU and its accelerator's chips, with the speeds assumed to be achieved.

    A chip is a lane with its own memory, so that each holds the whole path.
    """
    cpu, one = load_machine_of(ACCELERATORS[name][0]).devices
    return _achieved(cpu, assumed, assumed.cpu_flops, 1), _achieved(one, assumed, 1.0, chips)


def make_path(
    model: PublishedModel, kind: str, device: Device, where: str, assumed: Assumptions
) -> PathSpec | None:
    """Returns a representation's path on a device, valued by accuracy; None if it does not fit the memory."""
    work, memory = cost(model, kind, 4.0 * model.width, assumed.decoder)
    copies = 1 if device.kind == "cpu" else device.lanes
    if copies * memory.total > device.memory_bytes:
        return None
    curve = latency(work, device, Assumed(assumed.cpu_start_s, assumed.start_s))
    right = accuracy(model, kind, assumed.differences)
    return PathSpec(f"{kind}@{where}", device.name, right, curve, accuracy=right)


def matching(model: PublishedModel, assumed: Assumptions, rows: int) -> dict[str, dict[str, float | None]]:
    """Returns rows/s of each representation over table's on the CPU, by device, in batches of `rows` rows."""
    cpu = devices_of("gpu", 1, assumed)[0]
    table = make_path(model, "table", cpu, "cpu", assumed)
    assert table is not None
    base = cpu.lanes / table.latency.median(rows)
    found: dict[str, dict[str, float | None]] = {}
    for label, (name, chips) in {"CPU": ("gpu", 0), **CHIPS}.items():
        device = cpu if not chips else devices_of(name, chips, assumed)[1]
        made = {kind: make_path(model, kind, device, name, assumed) for kind in KINDS}
        found[label] = {
            kind: device.lanes / one.latency.median(rows) / base if one else None
            for kind, one in made.items()
        }
    return found


def _achieved(device: Device, assumed: Assumptions, flops: float, chips: int) -> Device:
    assert device.flops is not None
    assert device.bandwidth is not None
    return device.model_copy(
        update={
            "lanes": device.lanes * chips,
            "memory_bytes": device.memory_bytes * chips,
            "flops": device.flops * assumed.flops * flops,
            "bandwidth": device.bandwidth * chips * assumed.bandwidth,
            "link": device.link * assumed.link if device.link else None,
        }
    )
