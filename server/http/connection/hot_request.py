"""One request that a hot endpoint answers without ASGI.

It decompresses the body, queues the query through a `Call` (server/http/call.py) and writes the reply. It is
the counterpart of `asgi.AsgiRequest`: a connection feeds either of them and writes their answer. A body that
did not arrive with its head is judged by `HotEndpoint.reject_early` once it is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.types import Scope

from polyrec.planner.routing.admission.arrival import Arrival
from polyrec.server.dispatch.answer import Answer, Pending
from polyrec.server.errors import NotReady, TooLarge
from polyrec.server.http.connection.access_log import AnsweredBy
from polyrec.server.http.connection.body import Inflater, check_length
from polyrec.server.http.connection.head import Head
from polyrec.server.http.connection.hot_endpoint import HotEndpoint
from polyrec.server.http.connection.reply import Reply, WriteReply, error_reply

LARGE_BODY_BYTES = 2**16
"""Size from which a body is parsed in turn; it takes about a millisecond."""
STOPPING = "the server stops before the query was executed"


class HotRequest:
    """One request to a hot endpoint.

    scope: the ASGI scope.
    is_whole: whether the whole body arrived with the head, so that `reject_early` has seen it already.
    reply: writes the answer.
    fail: answers with an error.
    arrival: estimates when the bytes being read arrived.
    in_turn: does work that takes long, and holds some bytes, once it is this request's turn.
    max_waiting_bytes: maximum bytes of the body, which waits until it is complete; set by `admit`.
    waiting_bytes: bytes of the body received so far.
    """

    __slots__ = (
        "_arrival",
        "_call",
        "_done",
        "_endpoint",
        "_fail",
        "_head",
        "_in_turn",
        "_is_whole",
        "_pieces",
        "_reply",
        "_scope",
        "max_waiting_bytes",
        "waiting_bytes",
    )

    def __init__(
        self,
        endpoint: HotEndpoint,
        head: Head,
        scope: Scope,
        is_whole: bool,
        reply: WriteReply,
        fail: Callable[[Exception], None],
        arrival: Callable[[], Arrival],
        in_turn: Callable[[Callable[[], None], int], None],
    ) -> None:
        self._endpoint = endpoint
        self._call = endpoint.call(scope)
        self._head = head
        self._scope = scope
        self._is_whole = is_whole
        self._reply = reply
        self._fail = fail
        self._arrival = arrival
        self._in_turn = in_turn
        self._pieces: list[bytes] = []
        self._done = False
        self.max_waiting_bytes = self.waiting_bytes = 0

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
        self.max_waiting_bytes = self._call.admit()
        check_length(self._head.length or 0, self.max_waiting_bytes)

    def feed(self, piece: bytes) -> None:
        """Appends a piece of the body. Raises TooLarge."""
        self.waiting_bytes += len(piece)
        if self.waiting_bytes > self.max_waiting_bytes:
            raise TooLarge(f"the body has more than {self.max_waiting_bytes} bytes")
        self._pieces.append(piece)

    def end_body(self) -> None:
        """Marks the body as complete and queues the query; in turn if the body is large or compressed.

        Raises RequestError or FeatureError.
        """
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        self.waiting_bytes = 0
        arrival = self._arrival()
        if self._head.encoding not in (None, "", "identity"):
            inflater = Inflater(self._head.encoding, self.max_waiting_bytes, len(body))
            inflater.feed(body)
            self._in_turn(partial(self._decode, inflater, arrival), inflater.held_bytes)
        elif len(body) >= LARGE_BODY_BYTES:
            self._in_turn(partial(self._decode, body, arrival), len(body))
        else:
            self._queue(body, arrival)

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

    def _decode(self, body: bytes | Inflater, arrival: Arrival) -> None:
        """Parses a large body or does one step of decompressing it, unless its client has left."""
        if self._done:
            return
        try:
            if isinstance(body, Inflater):
                if body.step():
                    self._in_turn(partial(self._decode, body, arrival), body.held_bytes)
                    return
                body = body.finish()
            self._queue(body, arrival)
        except Exception as e:
            self._fail(e)

    def _queue(self, body: bytes, arrival: Arrival) -> None:
        """Rejects the request early or queues its query. Raises RequestError or FeatureError."""
        if not self._is_whole:
            headers, scope = self._head.headers, self._scope
            rejected = self._endpoint.reject_early(headers, len(body), lambda: scope, arrival, body)
            if rejected is not None:
                self._done = True
                self._reply(rejected.status, *rejected.encoded(()))
                return
        self._call.submit(body, arrival).payload.answer.listen(self._answered)

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
