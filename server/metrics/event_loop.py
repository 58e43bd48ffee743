"""Metrics of what delays the event loop: long callbacks, garbage collection, and other work on its core.

Queries create no garbage cycles (tests/server/http/connection/test_connection.py). The collector's pauses are
measured separately because no phase of a request includes them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import TracebackType

from polyrec.server.clock import clock
from polyrec.server.metrics.instruments import Registry
from polyrec.server.priority import ThreadWaits

TICK_EDGES_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class LoopMetrics:
    """The instruments of one event loop."""

    def __init__(self, registry: Registry) -> None:
        self._tick = registry.histogram(
            "polyrec_control_tick_seconds",
            "Time of one tick of the control loop: rates, corrections, prices.",
            TICK_EDGES_S,
        )
        self._lag = registry.histogram(
            "polyrec_loop_lag_seconds",
            "Delay of the control loop's timer on the event loop: requests may wait that long before they are"
            " read.",
            TICK_EDGES_S,
        )
        self._waited = registry.counter(
            "polyrec_loop_waited_seconds",
            "Time for which the event loop could have run but other work had its processor; 0 where the"
            " kernel does not count it.",
        ).only
        pauses = registry.histogram(
            "polyrec_gc_pause_seconds",
            "Time for which Python's garbage collector blocked the process, by generation.",
            TICK_EDGES_S,
            "generation",
        )
        self._pauses = tuple(pauses.labels(str(generation)) for generation in range(3))
        self._waits = ThreadWaits()

    def ticked(self, late_s: float, took_s: float) -> None:
        """Records one tick of the control loop."""
        self._lag.only.observe(late_s)
        self._tick.only.observe(took_s)

    def collected(self, generation: int, took_s: float) -> None:
        """Records one garbage collection."""
        self._pauses[generation].observe(took_s)

    def waited_s(self) -> float:
        """Updates and returns the seconds waited for a processor; to be called on the loop's thread."""
        self._waited.inc(max(0.0, self._waits.since_last_s()))
        return self._waited.value


class GcTimer:
    """Context manager that reports the generation (0 to 2) and duration in seconds of every collection."""

    def __init__(self, report: Callable[[int, float], object]) -> None:
        self._report = report
        self._began_s = 0.0

    def __enter__(self) -> GcTimer:
        gc.callbacks.append(self._on_collection)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = clock()
        else:
            self._report(info["generation"], clock() - self._began_s)
