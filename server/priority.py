"""Lowers the priority of a process that works in spare time. Imports nothing heavy: it comes first."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def lower_priority() -> None:
    """Sets nice 10: most time goes to other processes, but enough is left to open on a fully busy machine."""
    os.nice(10)


def take_spare_time() -> None:
    """Enters the kernel's idle class (sched(7), SCHED_IDLE): any other process that wakes goes first."""
    os.nice(19)
    with suppress(OSError, AttributeError):  # not on every kernel
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def waited_s(schedstat: bytes) -> float:
    """Returns the seconds for which a thread has waited for a processor, by its sched-stats in /proc.

    schedstat: nanoseconds on a processor, nanoseconds waited, and number of times it got a processor.
    """
    return int(schedstat.split()[1]) / 1e9


class OwnWaits:
    """The time for which this thread waited for a processor, as the kernel counts it (sched-stats)."""

    def __init__(self) -> None:
        self._file = Path("/proc/thread-self/schedstat")
        self._seen_s = 0.0
        self.since_last_s()

    def since_last_s(self) -> float:
        """Returns the seconds waited since the last call; 0 where the kernel does not count them."""
        try:
            now_s = waited_s(self._file.read_bytes())
        except OSError:
            return 0.0
        since_s, self._seen_s = now_s - self._seen_s, now_s
        return since_s
