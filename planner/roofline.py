"""Latency from first principles: what a path must compute and move, on a device's speeds.

For machines that one does not have and models that one has only read of. A batch takes the longer of its
arithmetic and its bytes, one over the other (the roofline), after a fixed time to start it, and, on an
accelerator, its ids over the link. It is a floor: nothing is as fast as its data sheet. The tail is
assumed, a factor on the median.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.devices import Device
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.profile import ProfileError

ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Work:
    """What one path does. flops: of a row. batch_bytes: read once a batch (weights); row_bytes: moved for
    each row (embedding rows, activations); gathers: random reads of a row; link_bytes: of a row's ids."""

    flops: float
    batch_bytes: float
    row_bytes: float
    gathers: float
    link_bytes: float


@dataclass(frozen=True, slots=True)
class Assumed:
    """start_s: before a batch does anything, on a CPU lane and on an accelerator. tail: 99th percentile
    over the median."""

    cpu_start_s: float = 50e-6
    accelerator_start_s: float = 300e-6
    tail: float = 1.4


def latency(work: Work, device: Device, assumed: Assumed) -> LatencyModel:
    """Of batches on one lane; lanes of a device share its bandwidth. Raises ProfileError if the device's
    speeds are not described."""
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
