"""Times Python's garbage collector, which blocks the event loop while it runs.

Queries create no garbage cycles (tests/server/http/connection/test_connection.py). The pauses are measured
separately because no phase of a request includes them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import TracebackType

from polyrec.server.clock import clock


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
