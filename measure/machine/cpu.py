"""Discovers the CPU cores and memory that this process may use.

A container's share is limited by the affinity mask and by its cgroups (version 1 or 2), where every ancestor
may set a lower limit.
"""

from __future__ import annotations

import os

from polyrec.loadtest.machine import processor
from polyrec.measure.machine import speed
from polyrec.measure.machine.runtimes import working_runtimes
from polyrec.models.memory import PROC, SYS, cgroups, lines, number, words
from polyrec.planner.devices import Device

X86 = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2")
ARM = ("sve2", "sve", "bf16", "asimd")


def cpu_device(measure: bool, unusable: dict[str, str]) -> Device:
    """Returns all usable cores as one device; adds runtimes that do not work to `unusable`."""
    cores = usable_cores()
    quota = cpu_quota()
    lanes = len(cores) if quota is None else max(1, min(len(cores), int(quota)))
    memory = memory_bytes()
    runtimes = working_runtimes("cpu", unusable)
    shared = "" if quota is None else f", quota {quota:g}"
    return Device(
        name="cpu",
        kind="cpu",
        lanes=lanes,
        memory_bytes=memory,
        bandwidth=speed.copy_bandwidth(lanes, memory) if measure else None,
        flops=speed.products("onnx" in runtimes) if measure else None,
        gathers=speed.gathers(memory) if measure else None,
        numa=max(1, len(numa_nodes(cores))),
        caches=caches(min(cores)),
        vector=vectors(),
        runtimes=runtimes,
        description=f"{processor()}, {len(cores)} cores{shared}",
    )


def usable_cores() -> set[int]:
    """Returns the cores of the affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """Returns the CPU quota of the cgroups in cores; None without a limit."""
    limits = []
    for folder in cgroups("cpu"):
        if parts := words(folder / "cpu.max"):
            if parts[0] != "max":
                limits.append(int(parts[0]) / int(parts[1]))
        elif (quota := number(folder / "cpu.cfs_quota_us")) and quota > 0:
            limits.append(quota / (number(folder / "cpu.cfs_period_us") or 100_000))
    return min(limits, default=None)


def memory_bytes() -> int:
    """Returns the machine's memory, or the limit of the cgroups."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 0
    limits = [
        limit
        for folder in cgroups("memory")
        for file in ("memory.max", "memory.limit_in_bytes")
        if (limit := number(folder / file)) is not None
    ]
    return min([total, *limits]) if total else min(limits, default=0)


def numa_nodes(cores: set[int]) -> list[int]:
    """Returns the NUMA nodes of the cores."""
    nodes = []
    for folder in (SYS / "devices/system/node").glob("node[0-9]*"):
        if cores & _ranges("".join(lines(folder / "cpulist"))):
            nodes.append(int(folder.name[4:]))
    return sorted(nodes)


def caches(core: int) -> dict[str, int]:
    """Returns cache sizes in bytes by level, as seen by one core: `L1d`, `L2`, `L3`; without
    instruction caches.
    """
    found = {}
    for index in sorted((SYS / f"devices/system/cpu/cpu{core}/cache").glob("index[0-9]*")):
        level, kind, size = ("".join(lines(index / f)) for f in ("level", "type", "size"))
        if kind != "Instruction" and size[:-1].isdigit():
            unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1], 1)
            found[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size[:-1]) * unit
    return found


def vectors() -> tuple[str, ...]:
    """Returns the cores' vector instruction sets that matter to matrix products."""
    for line in lines(PROC / "cpuinfo"):
        if line.startswith(("flags", "Features")):
            flags = set(line.partition(":")[2].split())
            return tuple(v for v in X86 + ARM if v in flags)
    return ()


def _ranges(text: str) -> set[int]:
    """Parses `0-3,8` as a set of numbers."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
