"""The machine: its devices, their memories, and how fast those are.

Discovered here, or read from a YAML file for a machine one does not have.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from models.schema import Strict

Bytes = Annotated[int, Field(ge=0)]
Real = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Device(Strict):
    """Something that executes: a CPU (all its cores), a GPU, an accelerator.

    name: as in a path, `cpu`, `cuda:0`. lanes: batches that execute at a time, for a CPU its usable
    cores. bandwidth: bytes/s of its memory, measured; link: bytes/s from host memory to it.
    flops: fp32 products, FLOP/s of one lane, measured.
    """

    name: str
    kind: Literal["cpu", "gpu", "accelerator"]
    lanes: Annotated[int, Field(ge=1)]
    memory_bytes: Bytes
    bandwidth: Real | None = None
    link: Real | None = None
    flops: Real | None = None
    description: str = ""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None


class Machine(Strict):
    """A machine's devices, and what its disk gives."""

    name: str
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    disk_bytes: Bytes | None = None
    disk_bandwidth: Real | None = None
    disk_latency_s: Real | None = None
