"""Reads the messages of calls, of a limited number at a time.

gRPC buffers a message until it is complete, and cannot bound the sum over calls; so the number of calls that
are read is bounded. A message that has arrived is read at once, so the call that has waited longest for its
message gives way to a new one: a client could otherwise keep out all others, and health checks, by calls
without a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from polyrec.server.errors import Malformed, TooBusy, TooSlow


class MessageReader:
    """Reads the messages of calls that have one, of at most `most` calls at a time.

    exceeded: is called with the name of a limit that a call exceeds.
    """

    def __init__(self, most: int, timeout_s: float, exceeded: Callable[[str], object]) -> None:
        self._most = most
        self._exceeded = exceeded
        self._timeout_s = timeout_s
        self._reading: dict[asyncio.Timeout, None] = {}
        """Calls that are read, the earliest first."""

    async def only(self, context: Any) -> bytes:
        """Reads the message of a call. Raises TooBusy, TooSlow, or Malformed if there is none."""
        if len(self._reading) >= self._most:
            earliest = next(iter(self._reading))
            del self._reading[earliest]
            if not earliest.expired():
                earliest.reschedule(0.0)
        waiting = asyncio.timeout(self._timeout_s)
        self._reading[waiting] = None
        try:
            async with waiting:
                message = await context.read()
        except TimeoutError:
            if waiting not in self._reading:
                self._exceeded("grpc_reading")
                raise TooBusy("grpc_reading", f"more than {self._most} calls are sending") from None
            self._exceeded("grpc_message")
            raise TooSlow("grpc_message", f"the message did not arrive in {self._timeout_s:g} s") from None
        finally:
            self._reading.pop(waiting, None)
        if message is grpc.aio.EOF:
            raise Malformed("the call has no message")
        return bytes(message)
