"""Reads the messages of a limited number of calls at a time.

gRPC buffers each message until it is complete and cannot limit the total over all calls, so the number of
calls being read is limited. At the limit, a new call displaces the call that has waited longest for its
message; otherwise calls that never send a message could keep out all others, even health checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from polyrec.server.displacing import DisplacingSet
from polyrec.server.errors import Malformed, TooBusy, TooSlow


class MessageReader:
    """Reads the single message of calls, for at most `max_reading` calls at a time.

    exceeded: called with the name of a limit that a call exceeds.
    """

    def __init__(self, max_reading: int, timeout_s: float, exceeded: Callable[[str], object]) -> None:
        self._max_reading = max_reading
        self._exceeded = exceeded
        self._timeout_s = timeout_s
        self._reading: DisplacingSet[asyncio.Timeout] = DisplacingSet(max_reading)

    async def only(self, context: Any) -> bytes:
        """Reads a call's only message. Raises TooBusy, TooSlow, or Malformed if there is none."""
        waiting = asyncio.timeout(self._timeout_s)
        displaced = self._reading.add(waiting)
        if displaced is not None and not displaced.expired():
            displaced.reschedule(0.0)
        try:
            async with waiting:
                message = await context.read()
        except TimeoutError:
            if waiting not in self._reading:
                self._exceeded("grpc_reading")
                raise TooBusy("grpc_reading", f"more than {self._max_reading} calls are sending") from None
            self._exceeded("grpc_message")
            raise TooSlow("grpc_message", f"the message did not arrive in {self._timeout_s:g} s") from None
        finally:
            self._reading.discard(waiting)
        if message is grpc.aio.EOF:
            raise Malformed("the call has no message")
        return bytes(message)
