"""Rounds of the event loop: when did what is read now reach this machine?

A loop that executes batches looks at its sockets only between them, and a request may have waited in the
kernel since it looked last. Its budget began then, not when it was read: at saturation that is half of 10 ms,
and whoever forgets it answers late what it believes to be in time. So the earliest possible moment counts:
when the loop looked last, unless it has slept since (then it was woken by what it reads), or what the kernel
says of the connection, which counts in ticks of 1 to 10 ms. Without the latter, a loop once held up for
longer than a budget would take everything that it then reads for too late, and go on doing so.
"""

from __future__ import annotations

import asyncio
import socket
import time
from resource import RUSAGE_THREAD, getrusage
from struct import Struct
from weakref import WeakKeyDictionary

clock = time.perf_counter

_CLOCK_MONOTONIC_COARSE = 6
TICK_S = time.clock_getres(_CLOCK_MONOTONIC_COARSE) if hasattr(socket, "TCP_INFO") else float("inf")
"""The kernel's. infinite where it tells nothing."""
_INFO_BYTES, _LAST_DATA = 56, Struct("52xI").unpack
"""struct tcp_info up to tcpi_last_data_recv: milliseconds since data arrived, in whole ticks."""


def since_data_s(connection: socket.socket) -> float:
    """Seconds since a TCP connection had its last data, at the most."""
    (ms,) = _LAST_DATA(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES))
    return float(ms) / 1e3 + TICK_S


class Rounds:
    """Of one loop. A round: sockets are read, one after another, then what that caused is done."""

    __slots__ = ("_arrived_s", "_looked_s", "_loop", "_reading", "_sleeps")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reading = False
        self._arrived_s = self._looked_s = clock()
        self._sleeps = -1

    def arrived_s(self, connection: socket.socket | None = None) -> float:
        """For what is being read: the earliest moment, on `clock`, at which it can have arrived.

        connection: where it is read from, if that is TCP.
        """
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read)  # runs when all sockets have been read
            now_s = clock()
            # A sleep is a voluntary switch of context; being robbed of the core is not.
            sleeps = getrusage(RUSAGE_THREAD).ru_nvcsw
            self._arrived_s = now_s if sleeps != self._sleeps else self._looked_s
            # The next round's may come from now on: work that is queued already runs before `_read`.
            self._looked_s, self._sleeps = now_s, sleeps
        if connection is not None and clock() - self._arrived_s > TICK_S:
            return max(self._arrived_s, clock() - since_data_s(connection))
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
