"""Rounds of the event loop: when did what is read now reach this machine?

A loop that executes batches looks at its sockets only between them, and a request may have waited in the
kernel since it looked last. Its budget began then, not when it was read: at saturation that is half of 10 ms,
and whoever forgets it answers late what it believes to be in time. Nobody tells when bytes arrived, so the
earliest moment counts, unless the loop has slept since: then it was woken by what it reads.
"""

from __future__ import annotations

import asyncio
import time
from resource import RUSAGE_THREAD, getrusage
from weakref import WeakKeyDictionary

clock = time.perf_counter


class Rounds:
    """Of one loop. A round: sockets are read, one after another, then what that caused is done."""

    __slots__ = ("_arrived_s", "_looked_s", "_loop", "_reading", "_sleeps")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reading = False
        self._arrived_s = self._looked_s = clock()
        self._sleeps = -1

    def arrived_s(self) -> float:
        """For what is being read: the earliest moment, on `clock`, at which it can have arrived."""
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read)  # runs when all sockets have been read
            now_s = clock()
            # A sleep is a voluntary switch of context; being robbed of the core is not.
            sleeps = getrusage(RUSAGE_THREAD).ru_nvcsw
            self._arrived_s = now_s if sleeps != self._sleeps else self._looked_s
            # The next round's may come from now on: work that is queued already runs before `_read`.
            self._looked_s, self._sleeps = now_s, sleeps
        return self._arrived_s

    def _read(self) -> None:
        self._reading = False


_of: WeakKeyDictionary[asyncio.AbstractEventLoop, Rounds] = WeakKeyDictionary()


def rounds_of(loop: asyncio.AbstractEventLoop) -> Rounds:
    """The one of that loop."""
    rounds = _of.get(loop)
    if rounds is None:
        rounds = _of[loop] = Rounds(loop)
    return rounds
