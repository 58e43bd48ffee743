"""Measures the speed of the server's core during a run, so that a simulation can follow it.

The speed of a virtual core with changing neighbors varies by a factor of 1.5 from second to second, and a
simulation at constant speed then differs from a live server by as much. Every 10 ms a real-time process on
that core does a piece of Python work twice (40 us) and records the second duration, since the first run finds
cold caches. This takes 0.5% of the server's core, which `Costs.held_rate` includes.

    with CoreSpeedMonitor({0}) as monitor:
        ...
        slowdown = monitor.slowdown(begin_s, end_s, usual_unit_s)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import TracebackType

import numpy as np

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.models.schema.batch import F64

EVERY_S = 0.01
WORK = 500
READY_S = 10.0
SMOOTHED = 3
"""Samples of the moving median, so that an interrupt in one of them is ignored."""


@dataclass(frozen=True, slots=True)
class MeasuredSlowdown:
    """Slowdown of a core over time; a `Slowdown` of the simulator.

    at_s: float64 [moments], ascending, at least one. factor: float64 [moments], valid from that moment on;
    the first also before it.
    """

    at_s: F64
    factor: F64

    def __post_init__(self) -> None:
        if not self.at_s.size or self.at_s.shape != self.factor.shape:
            raise ValueError(f"{self.at_s.size} moments with {self.factor.size} factors")
        if not (np.diff(self.at_s) >= 0).all() or not (self.factor > 0).all():
            raise ValueError("moments must ascend, and factors be positive")

    def __call__(self, now_s: float) -> float:
        """Returns the factor at a moment."""
        at = int(np.searchsorted(self.at_s, now_s, side="right")) - 1
        return float(self.factor[max(at, 0)])


class CoreSpeedMonitor:
    """Measures one core (the lowest of several) while used as a context manager."""

    def __init__(self, cores: Set[int]) -> None:
        self._core = min(cores)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._file = Path()

    def __enter__(self) -> CoreSpeedMonitor:
        """Waits for the first sample. Raises LoadError without permission for the real-time class."""
        self._folder = tempfile.TemporaryDirectory(prefix="polyrec-core-speed-")
        self._file = Path(self._folder.name) / "samples"
        self._file.touch()
        command = [sys.executable, "-m", "benchmarks.routing.core_speed", str(self._core), str(self._file)]
        self._process = subprocess.Popen(command)
        end_s = perf_counter() + READY_S
        while self._samples().size == 0:
            if self._process.poll() is not None or perf_counter() > end_s:
                self.__exit__(None, None, None)
                raise LoadError("the core's speed cannot be measured without root")
            time.sleep(EVERY_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def unit_s(self, begin_s: float, end_s: float, quantile: float = 0.5) -> float:
        """Returns a quantile of the work's duration in seconds between two moments of perf_counter."""
        return float(np.quantile(between(self._samples(), begin_s, end_s)[:, 1], quantile))

    def mean_unit_s(self, begin_s: float, end_s: float) -> float:
        """Returns the mean duration of the work in the same period, including interruptions."""
        return float(between(self._samples(), begin_s, end_s)[:, 1].mean())

    def slowdown(self, begin_s: float, end_s: float, unit_s: float) -> MeasuredSlowdown:
        """Returns the slowdown from begin_s (perf_counter) on, relative to the usual duration unit_s."""
        found = between(self._samples(), begin_s, end_s)
        return MeasuredSlowdown(found[:, 0] - begin_s, smoothed(found[:, 1]) / unit_s)

    def _samples(self) -> F64:
        raw = np.fromfile(self._file, np.float64)
        return raw[: raw.size // 2 * 2].reshape(-1, 2)


def between(samples: F64, begin_s: float, end_s: float) -> F64:
    """Returns the samples of a period, or if it has none, the nearest one.

    samples: float64 [n, 2], moment and duration of each, ascending.
    """
    first, end = np.searchsorted(samples[:, 0], (begin_s, end_s)).tolist()
    if first == end:
        first = max(first - 1, 0)
    return samples[first : max(end, first + 1)]


def smoothed(took_s: F64) -> F64:
    """Returns the moving median over SMOOTHED samples."""
    padded = np.pad(took_s, SMOOTHED // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, SMOOTHED), axis=1)


def _work() -> None:
    x = 0
    for i in range(WORK):
        x += i


def _sample(core: int, file: str) -> None:
    """Takes samples until the parent process ends."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    parent = os.getppid()
    with Path(file).open("ab", buffering=0) as out:
        while os.getppid() == parent:
            _work()
            began_s = perf_counter()
            _work()
            out.write(np.array((began_s, perf_counter() - began_s)).tobytes())
            time.sleep(EVERY_S)


if __name__ == "__main__":
    try:
        _sample(int(sys.argv[1]), sys.argv[2])
    except PermissionError:
        sys.exit(1)
