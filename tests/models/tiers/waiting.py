"""Waits for real servers by polling them, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30


def wait_until(true: Callable[[], bool], otherwise: str) -> None:
    """Polls for at most PATIENCE_S."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            if true():
                return
        except OSError:
            pass
        assert time.monotonic() < until, otherwise
        time.sleep(0.01)
