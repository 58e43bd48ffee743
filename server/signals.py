"""SIGTERM before there is anything to drain: the process ends at once.

The kernel drops a signal for process 1 (a container's) that has no handler, so one is set before the imports,
which take seconds, and stays until the server's own (server/drain.py). Imports nothing heavy.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Within it SIGTERM ends the process with status 0: nothing has been accepted that would be lost."""
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(signal_number: int, frame: FrameType | None) -> NoReturn:
    # no exception, which whatever is being imported might catch, and no finalizers of half of a module
    os._exit(0)
