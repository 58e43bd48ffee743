"""Signal handling during startup, before the drain (server/app/drain.py) takes over, and in helper processes.

The kernel does not deliver a signal without a handler to process 1 of a container. So a SIGTERM handler is
installed before the imports, which take seconds. SIGHUP, by default the end of a process, waits until it has
a handler or is known to be ignored. This module imports nothing heavy.
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
    """Context manager in which SIGTERM ends the process with status 0; no request was accepted yet.

    SIGHUP is held back until `accept_sighup`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        accept_sighup()


def accept_sighup() -> None:
    """Lets SIGHUP through, also one held back. Call it before processes start, which inherit the mask."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _end(signal_number: int, frame: FrameType | None) -> NoReturn:
    # sys.exit raises an exception, which a module being imported might catch
    os._exit(0)


def ignores_sighup() -> bool:
    """Whether this process ignores SIGHUP, as one started by nohup does."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def ignore_signals_of_service() -> None:
    """Ignores signals sent to the whole process group or service: the server ends its helpers itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
