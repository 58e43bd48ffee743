"""A hot endpoint's answer without ASGI: from the parser's callbacks to one write, on the loop, in no task.

An ASGI task, its messages and events are a third of what a small request costs (README, "Throughput"). What a
client sends in the ordinary way (POST, HTTP/1.1, nothing pipelined) needs none of them. All else goes through
`inference.py`, which is also what the answers here are compared with (tests/server/http/test_direct.py).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from uvicorn.server import ServerState

from server.answer import Answer, Pending
from server.errors import Malformed, NotReady, TooLarge
from server.http.body import ARRIVAL_TIMEOUT_S, announced, check_length, decompress
from server.http.call import Call
from server.http.reply import Reply, error_reply

STOPPING = "the server stops before the query was executed"


class Connection(Protocol):
    """What a direct answer needs of its connection."""

    server_state: ServerState

    def send(self, data: bytes) -> None:
        """Writes all of it at once."""

    def ended(self, direct: Direct) -> None:
        """The reply is written; closes if `direct.keep_alive` is false."""


class Direct:
    """One request. Has the attributes of uvicorn's `RequestResponseCycle` that its protocol looks at."""

    message_event = asyncio.Event()  # nobody waits for it

    __slots__ = (
        "_body",
        "_call",
        "_connection",
        "_limit",
        "_rest",
        "_timer",
        "disconnected",
        "encoding",
        "keep_alive",
        "response_complete",
        "whole",
    )

    def __init__(self, connection: Connection, call: Call, keep_alive: bool) -> None:
        self.disconnected = False
        self.response_complete = False
        self.keep_alive = keep_alive
        self.whole = False
        self._connection = connection
        self._call = call
        self._body = b""
        self._rest: bytearray | None = None
        self._limit = 0
        self.encoding: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Its headers are there; they may be enough to refuse it."""
        try:
            self._limit = self._call.limit
            self.encoding = announced(self._call.scope["headers"], self._limit)
        except Exception as e:
            self._refuse(e)

    def body(self, piece: bytes) -> None:
        """A piece of its body."""
        if not self._body:
            self._body = piece
        else:
            if self._rest is None:
                self._rest = bytearray()
            self._rest += piece
        if self._size > self._limit:
            self._refuse(TooLarge(f"the body has more than {self._limit} bytes"))

    def at_once(self, body: bytes, encoding: str | None, arrived_s: float) -> None:
        """All of it is there. encoding: as its head announces it."""
        try:
            self._limit = self._call.limit
            check_length(len(body), self._limit)
        except Exception as e:
            self._refuse(e)
        else:
            self._body, self.encoding = body, encoding
            self.complete(arrived_s)

    def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """The rest of the body has yet to arrive; it has so long."""
        if self._timer is None:
            self._timer = loop.call_later(ARRIVAL_TIMEOUT_S, self._too_slow)

    def complete(self, arrived_s: float) -> None:
        """The whole body is there. arrived_s: since when it can have been."""
        self.whole = True
        self._in_time()
        try:
            body = self._body if self._rest is None else self._body + self._rest
            if self.encoding is not None:
                body = decompress(body, self.encoding, self._limit)
            query = self._call.ask(body, arrived_s)
        except Exception as e:
            self._refuse(e)
        else:
            query.payload.answer.listen(self._answered)

    def gone(self) -> None:
        """The client has closed the connection."""
        self._in_time()
        self._call.gone()

    @property
    def _size(self) -> int:
        return len(self._body) + (0 if self._rest is None else len(self._rest))

    def _answered(self, answer: Pending) -> None:
        # An error is not raised here: it would hold this frame, and that the answer which holds the error.
        call, outcome = self._call, answer.outcome
        if isinstance(outcome, Answer):
            try:
                reply = call.reply(outcome)
            except Exception as e:
                self._refuse(e)
            else:
                self._send(reply)
                call.ended(reply.status)
        elif isinstance(outcome, Exception):
            self._refuse(outcome)
        else:
            call.cancelled()
            self.keep_alive = False
            self._send(error_reply(NotReady(STOPPING)))

    def _refuse(self, error: Exception) -> None:
        reply = self._call.refused(error)
        if reply is not None:
            self._send(reply)

    def _send(self, reply: Reply) -> None:
        self._in_time()
        self.response_complete = True
        if self.disconnected:
            return
        first = self._connection.server_state.default_headers
        self._connection.send(reply.wire(first, self._call.scope["headers"], self.keep_alive))
        self._connection.ended(self)

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse(
            Malformed(f"the body did not arrive within {ARRIVAL_TIMEOUT_S:g} s ({self._size} bytes came)")
        )

    def _in_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
