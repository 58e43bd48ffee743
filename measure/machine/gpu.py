"""Discovers GPUs through torch if it has CUDA, else through nvidia-smi and ONNX Runtime's provider."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from itertools import permutations

from polyrec.measure.machine.runtimes import working_runtimes
from polyrec.models.runtimes.registry import why_unusable
from polyrec.planner.devices import Device

COPIED = 256 * 2**20
SIDE = 4096
ROW = 64
REPEATS = 10
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


def gpu_devices(measure: bool, unusable: dict[str, str]) -> list[Device]:
    """Returns every CUDA device on which a runtime works; adds failures to `unusable`."""
    import torch

    if not torch.cuda.is_available():
        return _without_torch(unusable)
    found = []
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        runtimes = working_runtimes(f"cuda:{i}", unusable)
        if not runtimes:
            continue
        device = Device(
            name=f"cuda:{i}",
            kind="gpu",
            lanes=1,
            memory_bytes=int(properties.total_memory),
            runtimes=runtimes,
            description=f"{properties.name}, {properties.multi_processor_count} multiprocessors",
        )
        measurable = measure and "torch" in runtimes
        found.append(device.model_copy(update=_speeds(i)) if measurable else device)
    return [d.model_copy(update={"peers": _peers(d, found)}) for d in found] if measure else found


def _without_torch(unusable: dict[str, str]) -> list[Device]:
    """Discovers GPUs if torch has no CUDA but ONNX Runtime may."""
    why = why_unusable("onnx", "cuda:0")
    if why is not None:
        unusable["onnx on cuda:0"] = why
        return []
    try:
        listed = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as e:
        unusable["nvidia-smi"] = str(e).splitlines()[0]
        return []
    found = []
    for i, line in enumerate(listed.strip().splitlines()):
        name, _, megabytes = line.rpartition(",")
        if why_unusable("onnx", f"cuda:{i}") is None:
            memory = int(float(megabytes) * 2**20)
            found.append(
                Device(
                    name=f"cuda:{i}",
                    kind="gpu",
                    lanes=1,
                    memory_bytes=memory,
                    runtimes=("onnx",),
                    description=name.strip(),
                )
            )
    return found


def _speeds(index: int) -> dict[str, float]:
    """Measures a device: copies in its memory, copies from pinned host memory, random rows, products."""
    import torch

    device = torch.device("cuda", index)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        source = torch.empty(COPIED, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        pinned = torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)
        left, right, out = (torch.ones((SIDE, SIDE), device=device) for _ in range(3))
        rows = COPIED // ROW
        table = torch.ones((rows, ROW // 4), device=device)
        wanted = torch.randint(0, rows, (2**20,), device=device)
        picked = torch.empty((wanted.numel(), ROW // 4), device=device)
        return {
            "bandwidth": 2 * COPIED / _seconds(index, lambda: target.copy_(source)),
            "link": COPIED / _seconds(index, lambda: target.copy_(pinned, non_blocking=True)),
            "flops": 2 * SIDE**3 / _seconds(index, lambda: torch.matmul(left, right, out=out)),
            "gathers": wanted.numel()
            / _seconds(index, lambda: torch.index_select(table, 0, wanted, out=picked)),
        }
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32


def _peers(device: Device, others: list[Device]) -> dict[str, float]:
    """Measures bytes/s from each other GPU, by NVLink or PCIe."""
    import torch

    speeds = {}
    for source, target in permutations(others, 2):
        if target.name == device.name:
            data = torch.empty(COPIED, dtype=torch.uint8, device=source.name)
            place = torch.empty(COPIED, dtype=torch.uint8, device=target.name)
            index = int(target.name.partition(":")[2])
            taken = _seconds(index, partial(place.copy_, data))
            speeds[source.name] = COPIED / taken
    return speeds


def _seconds(index: int, work: Callable[[], object]) -> float:
    """Returns the seconds per call by the device's clock, the best of several after a warm-up call."""
    import torch

    work()
    taken: list[float] = []
    with torch.cuda.device(index):
        for _ in range(REPEATS):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            work()
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end) / 1e3)
    return max(min(taken), 1e-9)
