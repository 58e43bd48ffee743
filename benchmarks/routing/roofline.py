"""Roofline model: derives latency from a path's operations and bytes, and a device's speeds.

It is for machines and models that cannot be measured. A batch takes the longer of its arithmetic and its
memory traffic, after a fixed start time and, on an accelerator, the transfer of its ids. This is a lower
bound, since no device is as fast as its data sheet. The tail is an assumed factor on the median.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.devices import Device
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.profile import ProfileError

ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one path.

    flops: operations per row. batch_bytes: bytes read once per batch (weights). row_bytes: bytes moved per
    row (embedding rows, activations). gathers: random reads per row. link_bytes: bytes of a row's ids.
    """

    flops: float
    batch_bytes: float
    row_bytes: float
    gathers: float
    link_bytes: float


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumptions: start time of a batch on a CPU lane and on an accelerator; 99th percentile over median."""

    cpu_start_s: float = 50e-6
    accelerator_start_s: float = 300e-6
    tail: float = 1.4


def latency(work: Work, device: Device, assumed: Assumed) -> LatencyModel:
    """Derives the latency of batches on one lane; lanes of a device share its bandwidth.

    Raises ProfileError if the device's speeds are not described.
    """
    if device.flops is None or device.bandwidth is None:
        raise ProfileError(f"device '{device.name}' needs flops and bandwidth to derive latencies from")
    bandwidth = device.bandwidth / device.lanes
    start = assumed.cpu_start_s if device.kind == "cpu" else assumed.accelerator_start_s
    seconds = []
    for rows in ROWS:
        moved = (work.batch_bytes + rows * work.row_bytes) / bandwidth
        if device.gathers is not None:
            moved += rows * work.gathers / device.gathers
        sent = rows * work.link_bytes / device.link if device.kind != "cpu" and device.link else 0.0
        seconds.append(start + sent + max(rows * work.flops / device.flops, moved))
    return LatencyModel(rows=ROWS, median_s=tuple(seconds), tail_s=tuple(assumed.tail * s for s in seconds))
