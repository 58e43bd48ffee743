"""Lowers the priority of a process that works in spare time. Imports nothing heavy: it comes first."""

from __future__ import annotations

import os
from contextlib import suppress


def lower_priority() -> None:
    """Sets nice 10: most time goes to other processes, but enough is left to open on a fully busy machine."""
    os.nice(10)


def take_spare_time() -> None:
    """Enters the kernel's idle class (sched(7), SCHED_IDLE): any other process that wakes goes first."""
    os.nice(19)
    with suppress(OSError, AttributeError):  # not on every kernel
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
