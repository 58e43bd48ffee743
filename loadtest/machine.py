"""Describes the machine of a load test for reports, and provides process priority and scheduler counters."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyrec.loadtest.drivers.connection import LoadError


def machine() -> dict[str, str]:
    """Returns processor, cores in use, present load by others, scheduling class and Python version."""
    cores = sorted(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return {
        "processor": processor(),
        "cores": f"{len(cores)} of {os.cpu_count()} usable",
        "load average": f"{load:.1f} in the minute before",
        "scheduling": _scheduling(),
        "python": platform.python_version(),
    }


AUTOGROUP = Path("/proc/self/autogroup")
HIGHEST = -20


@contextmanager
def raised_priority() -> Iterator[None]:
    """Gives this process and its children the highest priority of the normal class.

    The real-time class is not used, because Linux takes 50 ms of every second from real-time processes that
    never sleep, as a saturated server does not. If sessions are scheduled as groups (autogroup), the
    session's priority is raised as well. Raises LoadError without permission.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    group = _autogroup()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, HIGHEST)
        if group is not None:
            AUTOGROUP.write_text(str(HIGHEST))
    except OSError as e:
        raise LoadError(f"cannot raise the priority: {e.strerror}; that takes root") from None
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        if group is not None:
            AUTOGROUP.write_text(str(group))


def core_seconds(pid: int) -> tuple[float, float]:
    """Returns the seconds on a core and the seconds waiting for one, of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    spent = [(task / "schedstat").read_text().split() for task in tasks]
    return sum(int(s[0]) for s in spent) / 1e9, sum(int(s[1]) for s in spent) / 1e9


def involuntary_switches(pid: int) -> int:
    """Returns the involuntary context switches of all threads of a process so far."""
    statuses = ((task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int(status.rpartition("nonvoluntary_ctxt_switches:")[2]) for status in statuses)


def _autogroup() -> int | None:
    """Returns the session's priority; None without autogroups."""
    try:
        return int(AUTOGROUP.read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None


def _scheduling() -> str:
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        return "real-time class"
    return f"normal, nice {os.getpriority(os.PRIO_PROCESS, 0)}"


def processor() -> str:
    """Returns the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
