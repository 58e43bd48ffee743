"""Ends the process at once on SIGTERM while the server is starting; tells whether SIGHUP is ignored.

The kernel ignores a signal to process 1 (of a container) that has no handler, so one is set before the
imports, which take seconds; the server's own replaces it (server/app/drain.py). Imports nothing heavy.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Context in which SIGTERM ends the process with status 0, as no request has been accepted yet."""
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(signal_number: int, frame: FrameType | None) -> NoReturn:
    # sys.exit raises an exception, which code being imported might catch, and would run finalizers
    os._exit(0)


def ignores_sighup() -> bool:
    """Whether this process was started to outlive its terminal, as by nohup."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
