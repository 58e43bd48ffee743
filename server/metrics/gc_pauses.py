"""Python's garbage collector, timed: while it goes over its objects, nothing else happens on the loop.

Queries are made so that they leave it nothing (tests/server/http/test_direct.py); what it takes all the same
is told, since nobody sees it otherwise: no counter of the request that it holds up has it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import TracebackType

from polyrec.server.dispatch.dispatcher import clock


class Collector:
    """Tells of every collection its generation (0 to 2) and its seconds. Use as a context."""

    def __init__(self, tell: Callable[[int, float], object]) -> None:
        self._tell = tell
        self._began_s = 0.0

    def __enter__(self) -> Collector:
        gc.callbacks.append(self._told)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._told)

    def _told(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = clock()
        else:
            self._tell(info["generation"], clock() - self._began_s)
