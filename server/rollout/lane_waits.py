"""Measures how long a canary's lanes waited for a CPU, so that a rollout does not blame the version for it.

A canary's lanes run in the kernel's idle scheduling class, so other programs delay them in a way that will
not delay the version once it is promoted. /proc/PID/schedstat has the total time that a thread was runnable
but did not run (see sched-stats in the kernel's documentation). The kernel adds a wait when it ends; a wait
in progress shows as a runnable thread that has not run since the last sample.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from polyrec.server.lanes.lane import Lane
from polyrec.server.priority import waited_s

MIN_SAMPLE_S = 5e-4
"""Minimum interval between two reads of the files."""
Waits = tuple[float, ...]
"""Total seconds of waiting so far, by lane."""


class WaitSample(NamedTuple):
    """Waits of some lanes at one time; empty if they are not watched."""

    at_s: float = 0.0
    waits: Waits = ()


class WaitClock:
    """Accumulates the waits of one thread from the kernel's counters."""

    def __init__(self) -> None:
        self._seen: bytes | None = None
        self._sampled_s = self._lasting_s = 0.0

    def sample(self, now_s: float, schedstat: bytes, is_ready: Callable[[], bool]) -> float:
        """Returns the seconds waited so far.

        schedstat: see `waited_s`.
        is_ready: returns whether the thread is runnable; called only if the counters have not changed.
        """
        if schedstat != self._seen:
            self._seen, self._lasting_s = schedstat, 0.0
        elif is_ready():
            self._lasting_s += now_s - self._sampled_s
        self._sampled_s = now_s
        return waited_s(schedstat) + self._lasting_s


class LaneWaits:
    """The waits of some lanes.

    They are 0 for a lane without a live process of its own, and for all lanes if the kernel does not count
    waits (/proc/PID/schedstat is absent).
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = [_WatchedLane(lane) for lane in lanes]
        self._waits: Waits = ()
        self._sampled_s = -math.inf

    def sample(self, now_s: float) -> WaitSample:
        """Reads the waits so far."""
        if now_s - self._sampled_s >= MIN_SAMPLE_S:
            self._sampled_s = now_s
            self._waits = tuple(lane.sample(now_s) for lane in self._lanes)
        return WaitSample(now_s, self._waits)


class _WatchedLane:
    __slots__ = ("_clock", "_lane", "_pid")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._pid: int | None = None
        self._clock = WaitClock()

    def sample(self, now_s: float) -> float:
        pid = self._lane.pid
        if pid is None:
            return 0.0
        if pid != self._pid:
            self._pid, self._clock = pid, WaitClock()
        with suppress(OSError, IndexError):
            return self._clock.sample(now_s, _read(pid, "schedstat"), lambda: _state(pid) == b"R")
        return 0.0


def _state(pid: int) -> bytes:
    """Returns the state of a process's first thread (proc_pid_stat(5)).

    The process name before it may contain any character.
    """
    return _read(pid, "stat").rpartition(b")")[2].split()[0]


def _read(pid: int, name: str) -> bytes:
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        return os.read(fd, 1024)
    finally:
        os.close(fd)
