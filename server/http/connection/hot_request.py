"""One request that a hot endpoint answers without ASGI.

It decompresses the body, queues the query through a `Call` (server/http/call.py) and writes the reply. It is
the counterpart of `asgi.AsgiRequest`: a connection feeds either of them and writes their answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from polyrec.planner.routing.admission.arrival import Arrival
from polyrec.server.dispatch.answer import Answer, Pending
from polyrec.server.errors import NotReady, TooLarge
from polyrec.server.http.call import Call
from polyrec.server.http.connection.access_log import AnsweredBy
from polyrec.server.http.connection.body import Inflater, check_length
from polyrec.server.http.connection.head import Head
from polyrec.server.http.connection.reply import HeaderList, Reply, error_reply

STOPPING = "the server stops before the query was executed"


class WriteReply(Protocol):
    """Writes an answer to the connection. close: whether to close the connection after it."""

    def __call__(self, status: int, headers: HeaderList, body: bytes, close: bool = False) -> None: ...


class HotRequest:
    """One request to a hot endpoint.

    reply: writes the answer.
    fail: answers with an error.
    arrival: estimates when the bytes being read arrived.
    limit: maximum bytes of the body, set by `admit`.
    waiting_bytes: bytes of the body received so far.
    """

    __slots__ = (
        "_arrival",
        "_call",
        "_done",
        "_fail",
        "_head",
        "_pieces",
        "_reply",
        "limit",
        "waiting_bytes",
    )

    def __init__(
        self,
        call: Call,
        head: Head,
        reply: WriteReply,
        fail: Callable[[Exception], None],
        arrival: Callable[[], Arrival],
    ) -> None:
        self._call = call
        self._head = head
        self._reply = reply
        self._fail = fail
        self._arrival = arrival
        self._pieces: list[bytes] = []
        self._done = False
        self.limit = self.waiting_bytes = 0

    @property
    def route(self) -> str:
        """Always empty, which means the route is the request's target."""
        return ""

    @property
    def answered_by(self) -> AnsweredBy:
        """The path that answered."""
        return self._call.answered_by

    def admit(self) -> None:
        """Authenticates the client and sets the body's limit. Raises TooLarge or errors of `Call.admit`."""
        self.limit = self._call.admit()
        check_length(self._head.length or 0, self.limit)

    def feed(self, piece: bytes) -> None:
        """Appends a piece of the body. Raises TooLarge."""
        self.waiting_bytes += len(piece)
        if self.waiting_bytes > self.limit:
            raise TooLarge(f"the body has more than {self.limit} bytes")
        self._pieces.append(piece)

    def finish(self) -> None:
        """Marks the body as complete and queues the query. Raises RequestError or FeatureError."""
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        self.waiting_bytes = 0
        if self._head.encoding in (None, "", "identity"):
            self._queue(body)
        else:
            inflater = Inflater(self._head.encoding, self.limit, len(body))
            inflater.feed(body)
            self._inflate(inflater)

    def reject(self, error: Exception) -> Reply | None:
        """Counts the error and builds its reply; None if the client has left."""
        return self._call.reject(error)

    def abandon(self, error: Exception) -> None:
        """Counts the error, with which the connection answers."""
        self._done = True
        self._call.reject(error)

    def disconnect(self) -> None:
        """Cancels the query; called when the client closed the connection."""
        if not self._done:
            self._done = True
            self._call.disconnect()

    def _inflate(self, inflater: Inflater) -> None:
        """Decompresses one step of the body and schedules the next, so that other clients are served."""
        if self._done:
            return
        try:
            if inflater.step():
                asyncio.get_running_loop().call_soon(self._inflate, inflater)
            else:
                self._queue(inflater.finish())
        except Exception as e:
            self._fail(e)

    def _queue(self, body: bytes) -> None:
        """Parses the body and queues the query. Raises RequestError or FeatureError."""
        self._call.submit(body, self._arrival()).payload.answer.listen(self._answered)

    def _answered(self, pending: Pending) -> None:
        """Writes the answer or retries, once the query has its outcome."""
        call, outcome = self._call, pending.outcome
        if isinstance(outcome, Exception):
            try:
                query = call.retry(outcome)
            except Exception as e:
                query, outcome = None, e
            if query is not None:
                query.payload.answer.listen(self._answered)
                return
        self._done = True
        if isinstance(outcome, Answer):
            try:
                reply = call.reply(outcome)
            except Exception as e:
                self._fail(e)
            else:
                self._reply(reply.status, *reply.encoded(self._head.headers))
                call.finish(reply.status)
        elif isinstance(outcome, Exception):
            self._fail(outcome)
        else:
            call.cancel()
            stopping = error_reply(NotReady(STOPPING))
            self._reply(stopping.status, *stopping.encoded(()), close=True)
