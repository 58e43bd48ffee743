"""The machine that a load test ran on, in words for its reader: figures without it mean nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> dict[str, str]:
    """Processor, cores in use, load by others at this moment, scheduling class, Python."""
    cores = sorted(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return {
        "processor": _processor(),
        "cores": f"{len(cores)} of {os.cpu_count()} usable",
        "load average": f"{load:.1f} in the minute before",
        "scheduling": "real-time class" if real_time else "normal",
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
