"""Reads the messages of calls, of a limited number at a time.

gRPC buffers a message until it is complete, and cannot bound the sum over calls; so the number of calls that
are read is bounded. A message that has arrived is read at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from polyrec.server.errors import Malformed, TooBusy, TooSlow


class Sender(Protocol):
    """A call that has a message."""

    def receive(self, received: Callable[[bytes | None], object]) -> None:
        """Has `received` called with the next message; None: there is none."""
        ...


class MessageReader:
    """Reads the messages of calls that have one, of at most `most` calls at a time.

    exceeded: is called with the name of a limit that a call exceeds.
    """

    def __init__(self, most: int, timeout_s: float, exceeded: Callable[[str], object]) -> None:
        self._most = most
        self._exceeded = exceeded
        self._timeout_s = timeout_s
        self._reading = 0

    def read(self, call: Sender, done: Callable[[bytes | Exception], object]) -> None:
        """Has `done` called with the message of a call, or with TooSlow, or with Malformed if there is none.

        Raises TooBusy.
        """
        if self._reading >= self._most:
            self._exceeded("grpc_reading")
            raise TooBusy("grpc_reading", f"more than {self._most} calls are sending")
        self._reading += 1
        is_open = True

        def end(outcome: bytes | Exception) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                timer.cancel()
                self._reading -= 1
                done(outcome)

        def too_slow() -> None:
            if is_open:
                self._exceeded("grpc_message")
                end(TooSlow("grpc_message", f"the message did not arrive in {self._timeout_s:g} s"))

        timer = asyncio.get_running_loop().call_later(self._timeout_s, too_slow)
        call.receive(lambda m: end(Malformed("the call has no message") if m is None else m))

    async def only(self, call: Sender) -> bytes:
        """Reads the message of a call. Raises TooBusy, TooSlow, or Malformed if there is none."""
        arrived: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()
        self.read(call, lambda outcome: None if arrived.done() else arrived.set_result(outcome))
        outcome = await arrived
        if isinstance(outcome, Exception):
            raise outcome
        return outcome
