"""Lowers the priority of processes that use only spare CPU time.

Imports nothing heavy, to take effect early.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SHORT_S = 0.0002
"""Pauses of a thread that are not worth reading its schedstat, which takes 20 us."""


def lower_priority() -> None:
    """Sets nice 10, which leaves enough time to open bundles even on a fully busy machine."""
    os.nice(10)


def take_spare_time() -> None:
    """Enters the kernel's idle scheduling class (SCHED_IDLE, sched(7)), which yields to any other process."""
    os.nice(19)
    with suppress(OSError, AttributeError):  # not on every kernel
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def waited_s(schedstat: bytes) -> float:
    """Returns the seconds for which a thread has waited for a CPU, from its schedstat in /proc.

    schedstat: nanoseconds on a CPU, nanoseconds waited, and number of time slices.
    """
    return int(schedstat.split()[1]) / 1e9


class ThreadWaits:
    """Measures for how long this thread waited for a CPU, from the kernel's schedstat."""

    def __init__(self) -> None:
        self._file = Path("/proc/thread-self/schedstat")
        self._seen_s = 0.0
        self.since_last_s()

    def since_last_s(self) -> float:
        """Returns the seconds waited since the last call; 0 if the kernel does not count them."""
        try:
            now_s = waited_s(self._file.read_bytes())
        except OSError:
            return 0.0
        since_s, self._seen_s = now_s - self._seen_s, now_s
        return since_s

    def within_s(self, idle_s: float) -> float:
        """Returns how many of the seconds just passed in which this thread did not run it waited for a CPU.

        The others it slept, such as for a disk. Waits since the last call count, so where the thread does
        both, some may be older. Costs nothing if the thread hardly paused.
        """
        return min(idle_s, self.since_last_s()) if idle_s > SHORT_S else 0.0
