"""One HTTP/1.1 connection: request bytes in, response bytes out, one request at a time.

    READING_HEAD  until a head is complete, also while idle between two requests
    READING_BODY  until the body is complete; the request may be answered before that
    WAITING       the dispatcher or the application processes the request
    WRITING       the answer fills the write buffer; no request is read until the client has read it
    DISCARDING    the rest of a request that was answered early is read and dropped, within bounds
    CLOSED        nothing more is read

    READING_HEAD -> READING_BODY -> WAITING -> (WRITING ->) READING_HEAD     a request and its answer
    READING_BODY -> DISCARDING -> READING_HEAD                               answered before the body arrived
    any of them  -> DISCARDING -> CLOSED                                     malformed, or a time limit passed
    READING_HEAD, WAITING -> CLOSED                                          idle for too long; last answer

A head is parsed only once it is complete, with a new parser for each, and later bytes stay in the buffer
until then: how a request is read does not depend on TCP segmentation or on earlier requests. POSTs to hot
endpoints are answered without ASGI; every other request runs through the application. Each state has a
deadline, which `Front.sweep` enforces.

`protocol_of` returns the class for uvicorn's public `http=` option. uvicorn needs the constructor's keywords
and `shutdown` of it (tests/server/http/connection/test_connection.py checks that against the installed
version)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from enum import Enum, auto
from http import HTTPStatus
from typing import cast

from starlette.types import Scope

from polyrec.server.dispatch.answer import Answer, Pending
from polyrec.server.dispatch.dispatcher import clock
from polyrec.server.errors import HttpViolation, NotReady, TooLarge
from polyrec.server.http.call import Call
from polyrec.server.http.connection.asgi import Address, AsgiRequest, make_scope
from polyrec.server.http.connection.body import Inflater, check_length
from polyrec.server.http.connection.body_reader import BodyReader
from polyrec.server.http.connection.head import Head, find_end, parse_head
from polyrec.server.http.connection.reply import BODILESS, error_reply, to_wire
from polyrec.server.http.connection.shared import Front, ServerState

log = logging.getLogger("polyrec.http")

MAX_WAITING_BYTES = 64 * 2**10
"""Received bytes that wait for an earlier request or for the application; beyond it reading pauses."""
STEPS_A_TURN = 16
"""Maximum heads and body parts that one connection reads before the event loop serves others."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NEVER_S = float("inf")
STOPPING = "the server stops before the query was executed"


class State(Enum):
    """See the module's docstring."""

    READING_HEAD = auto()
    READING_BODY = auto()
    WAITING = auto()
    WRITING = auto()
    DISCARDING = auto()
    CLOSED = auto()


READING_HEAD, READING_BODY, WAITING = State.READING_HEAD, State.READING_BODY, State.WAITING
WRITING, DISCARDING, CLOSED = State.WRITING, State.DISCARDING, State.CLOSED


class Connection(asyncio.Protocol):
    """One client's connection. deadline_s: when the current state times out, in seconds on `clock`."""

    _transport: asyncio.Transport

    def __init__(self, front: Front, server_state: ServerState) -> None:
        self._front = front
        self._server_state = server_state
        self._loop = asyncio.get_running_loop()
        self._client: Address = None
        self._server: Address = None
        self._scheme = "http"
        self._state = READING_HEAD
        self.deadline_s = NEVER_S
        self._buffer = b""
        self._held_bytes = self._requests = 0
        self._head_begun = self._advancing = self._awaits_turn = False
        self._read_paused = self._write_paused = False
        self._prepare(None)

    def _prepare(self, head: Head | None) -> None:
        """Resets the state of the previous request. head: the next one's."""
        self._head = head
        self._keep_alive = head is None or head.keep_alive
        self._call: Call | None = None
        self._asgi: AsgiRequest | None = None
        self._task: asyncio.Task[None] | None = None
        self._reader = BodyReader(0 if head is None else head.length)
        self._pieces: list[bytes] = []
        self._limit = 0

    # callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has its methods, but is no subclass
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if isinstance(peer, tuple) and isinstance(own, tuple):
            self._client, self._server = (peer[0], peer[1]), (own[0], own[1])
        if transport.get_extra_info("sslcontext") is not None:
            self._scheme = "https"
        self._server_state.connections.add(self)
        if self._front.join(self):
            self._rest()
        else:
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        state, self._state = self._state, CLOSED
        self._hold(0)
        self._front.leave(self)
        self._server_state.connections.discard(self)
        if self._asgi is not None:
            self._asgi.disconnect()
        if self._call is not None and state in (READING_BODY, WAITING):
            self._call.gone()

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        self._advance()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._state is WRITING:
            self._rest()
            self._advance()

    # called by uvicorn and the front

    def shutdown(self) -> None:
        """Closes the connection, after the answer to a request that has begun to arrive."""
        self._keep_alive = False
        if self._state is READING_HEAD and not self._buffer:
            self._close()

    @property
    def idle(self) -> bool:
        """Whether the connection is between two requests."""
        return self._state is READING_HEAD and not self._buffer and self._requests > 0

    def time_out(self) -> None:
        """Rejects the request or closes the connection, as the deadline of its state has passed."""
        limits = self._front.limits
        if self._state is READING_HEAD and self._head_begun:
            self._violate(_too_slow("head_time", f"the head did not arrive within {limits.head_s:g} s"))
        elif self._state is READING_BODY:
            self._violate(_too_slow("body_time", f"the body did not arrive within {limits.body_s:g} s"))
        elif self._state is READING_HEAD and not self._transport.get_write_buffer_size():
            self._front.count("idle_time")
            self._close()
        else:
            if self._state is not DISCARDING:
                self._front.exceeded("write_time", f"{self._name} did not read its answer")
            self.abort()

    def abort(self) -> None:
        """Closes the connection without waiting for the client."""
        self._state = CLOSED
        self.deadline_s = NEVER_S
        self._transport.abort()

    # requests

    def _advance(self) -> None:
        """Processes the buffer until more bytes are needed or a request waits for its answer."""
        if self._advancing or self._awaits_turn:
            return
        self._advancing = True
        try:
            for _ in range(STEPS_A_TURN):
                if not self._step():
                    break
            else:
                # what comes meanwhile waits in the kernel, or one client could fill memory and hold the loop
                self._pause_reading()
                self._queue_turn()
        except Exception:
            log.exception("the connection of %s failed", self._name)
            self.abort()
        finally:
            self._advancing = False
        unread = self._reader.size if self._pieces else 0
        self._hold(len(self._buffer) + (unread if self._asgi is None else self._asgi.waiting_bytes))
        if self._held_bytes and self._front.full:
            self._give_up_memory()
        if self._read_paused and self._wants_bytes:
            self._resume_reading()

    def _queue_turn(self) -> None:
        """Continues with the buffer after other connections had their turn."""
        if not self._awaits_turn:
            self._awaits_turn = True
            self._front.later(self)

    def take_turn(self) -> None:
        """Continues with the buffer."""
        self._awaits_turn = False
        self._advance()

    @property
    def _wants_bytes(self) -> bool:
        """Whether more bytes are needed, or there is room for them."""
        if self._awaits_turn or self._state is CLOSED:
            return False
        if self._state is READING_BODY and self._asgi is not None:
            return self._asgi.waiting_bytes <= MAX_WAITING_BYTES
        return self._state not in (WAITING, WRITING) or len(self._buffer) <= MAX_WAITING_BYTES

    def _give_up_memory(self) -> None:
        """Ends this connection's unfinished request, because all together hold too many bytes."""
        if self._state in (READING_HEAD, READING_BODY):
            self._violate(_busy("buffered_bytes", "unfinished requests use all memory allowed for them"))
        elif self._state in (WAITING, WRITING) and self._buffer:
            self._front.exceeded("buffered_bytes", f"{self._name} sent more than it read answers")
            self.abort()
        self._hold(len(self._buffer))

    def _step(self) -> bool:
        """Reads one head, or the received part of a body; false if it must wait for bytes or an answer."""
        try:
            if self._state is READING_HEAD:
                return self._take_head()
            if self._state is READING_BODY:
                return self._take_body()
        except HttpViolation as violation:
            self._violate(violation)
            return True
        if self._state is DISCARDING:
            return self._discard()
        if self._state is CLOSED:
            self._buffer = b""
        elif len(self._buffer) > MAX_WAITING_BYTES:
            self._pause_reading()
        return False

    def _take_head(self) -> bool:
        data = self._buffer.lstrip(b"\r\n")  # a blank line may precede a request
        end = find_end(data) if data else -1
        if end < 0:
            if self._buffer and not self._head_begun:
                self._head_begun = True
                self.deadline_s = clock() + self._front.limits.head_s
            self._buffer = data
            return False
        self._buffer = data[end:]
        self._begin(parse_head(data[:end]))
        return True

    def _begin(self, head: Head) -> None:
        """Starts a request: at a hot endpoint, in the application, or rejected by its head."""
        front = self._front
        self._prepare(head)
        self._state = READING_BODY
        self._requests += 1
        if self._requests >= front.limits.requests:
            self._keep_alive = False
            front.exceeded("requests", f"{self._name} has sent {self._requests} and has to reconnect")
        hot = front.hot.get(head.target) if head.method == b"POST" else None
        try:
            if hot is not None:
                rejected = hot.reject_early(head.headers, head.length, self._scope, front.arrived_s())
                if rejected is not None:
                    self._reply(rejected.status, *rejected.encoded(()))
                    return
                self._call = call = hot.call(self._scope())
                self._limit = call.admit()
                check_length(head.length or 0, self._limit)
            else:
                self._asgi = AsgiRequest(front.app, self._scope(), self._reply, self._resume_reading)
                self._task = self._loop.create_task(self._asgi.run())
                self._server_state.tasks.add(self._task)
                self._task.add_done_callback(self._server_state.tasks.discard)
        except Exception as e:
            self._reject(e)
            return
        if self._reader.endless or len(self._buffer) < self._reader.left:
            self.deadline_s = clock() + front.limits.body_s
            if head.expects_continue and not self._buffer:
                self._transport.write(CONTINUE)

    def _scope(self) -> Scope:
        """The ASGI scope of the current request. Raises Malformed."""
        assert self._head is not None
        return make_scope(self._head, self._client, self._server, self._scheme)

    def _take_body(self) -> bool:
        pieces, self._buffer, complete = self._reader.take(self._buffer)
        try:
            for piece in pieces:
                if self._asgi is not None:
                    self._asgi.feed(piece)
                else:
                    if self._reader.size > self._limit:
                        raise TooLarge(f"the body has more than {self._limit} bytes")
                    self._pieces.append(piece)
            if complete:
                self._complete()
        except HttpViolation:
            raise
        except Exception as e:
            self._reject(e)
            return True
        if self._asgi is not None and self._asgi.waiting_bytes > MAX_WAITING_BYTES:
            self._pause_reading()
        return complete

    def _complete(self) -> None:
        """Passes the complete request to the application, or to the hot endpoint, decompressed."""
        self._state = WAITING
        self.deadline_s = NEVER_S
        if self._asgi is not None:
            self._asgi.finish()
            return
        assert self._call is not None
        assert self._head is not None
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        if self._head.encoding in (None, "", "identity"):
            self._ask(body)
        else:
            inflater = Inflater(self._head.encoding, self._limit, len(body))
            inflater.feed(body)
            self._inflate(inflater)

    def _inflate(self, inflater: Inflater) -> None:
        """Decompresses one step of the body; the event loop serves other clients between two steps."""
        if self._state is not WAITING:
            return
        try:
            if inflater.step():
                self._loop.call_soon(self._inflate, inflater)
            else:
                self._ask(inflater.finish())
        except Exception as e:
            self._reject(e)

    def _ask(self, body: bytes) -> None:
        assert self._call is not None
        query = self._call.ask(body, self._front.arrived_s())
        query.payload.answer.listen(self._answered)

    # answers

    def _answered(self, pending: Pending) -> None:
        """Writes the answer of a hot request."""
        call, outcome = self._call, pending.outcome
        assert call is not None
        assert self._head is not None
        if isinstance(outcome, Answer):
            try:
                reply = call.reply(outcome)
            except Exception as e:
                self._reject(e)
            else:
                self._reply(reply.status, *reply.encoded(self._head.headers))
                call.ended(reply.status)
        elif isinstance(outcome, Exception):
            self._reject(outcome)
        else:
            call.cancelled()
            self._keep_alive = False
            self._reply_error(NotReady(STOPPING))

    def _reject(self, error: Exception) -> None:
        """Answers the current request with an error."""
        if isinstance(error, TooLarge):
            self._front.exceeded("body_bytes", f"{self._name}: {error}")
        if self._call is None:
            self._reply_error(error)
        elif (reply := self._call.refused(error)) is not None:
            self._reply(reply.status, *reply.encoded(()))

    def _violate(self, violation: HttpViolation) -> None:
        """Answers a request that breaks HTTP or a limit, and closes: where the next one begins is unknown."""
        self._front.exceeded(violation.limit, f"{self._name}: {violation}")
        call, task = self._call, self._task
        self._prepare(None)
        if call is not None:
            call.refused(violation)
        if task is not None:
            task.cancel()
        self._state = READING_BODY
        self._keep_alive = False
        self._reply_error(violation)

    def _turn_away(self) -> None:
        """Answers a connection that there is no room for, before it asks; nobody watches its deadline."""
        full = _busy("connections", "the server has no room for more connections")
        self._front.exceeded(full.limit, f"{self._name}: {full}")
        reply = error_reply(full)
        headers, body = reply.encoded(())
        headers = (*self._server_state.default_headers, *headers)
        self._transport.write(to_wire(reply.status, headers, body, keep_alive=False))
        self._close()

    def _reply_error(self, error: Exception) -> None:
        reply = error_reply(error)
        self._reply(reply.status, *reply.encoded(()))

    def _reply(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Writes an answer and enters the next state."""
        state, limits = self._state, self._front.limits
        if state is not READING_BODY and state is not WAITING:
            return  # answered already, or nobody is there
        unread = state is READING_BODY
        if self._reader.left > limits.discard_bytes or self._front.draining:
            self._keep_alive = False
        if status in BODILESS or (self._head is not None and self._head.method == b"HEAD"):
            body = b""
        self._transport.write(
            to_wire(status, (*self._server_state.default_headers, *headers), body, self._keep_alive)
        )
        self._call = self._asgi = self._task = None
        self._pieces = []
        if not self._keep_alive:
            self._linger(unread)
        elif unread and not self._drop_body():
            self._state = DISCARDING
            self.deadline_s = clock() + limits.body_s
        elif self._write_paused:
            self._state = WRITING
            self.deadline_s = clock() + limits.write_s
        else:
            self._rest()
        if (self._buffer or self._read_paused) and not self._advancing:
            self._queue_turn()

    def _drop_body(self) -> bool:
        """Drops the rest of a request's body if all of it has been received; false: nothing was done."""
        left = self._reader.left
        if self._reader.endless or len(self._buffer) < left:
            return False
        self._buffer = self._buffer[left:]
        return True

    def _discard(self) -> bool:
        """Drops received bytes of a request that was answered before its end."""
        try:
            _, self._buffer, complete = self._reader.take(self._buffer)
        except HttpViolation:
            self.abort()
            return False
        if self._reader.size > self._front.limits.discard_bytes or (complete and not self._keep_alive):
            self.abort()
        elif complete:
            self._rest()
            return True
        return False

    def _rest(self) -> None:
        """Waits for the next request."""
        self._state = READING_HEAD
        self._head_begun = False
        self.deadline_s = clock() + self._front.limits.idle_s
        if not self._buffer:
            self._resume_reading()

    def _linger(self, unread: bool) -> None:
        """Closes the sending side of the connection, and reads on until the client closes its own.

        If unread data remained at the close, the kernel would reset the connection and lose the answer.
        """
        limits = self._front.limits
        if self._transport.can_write_eof():
            self._transport.write_eof()
        elif not unread and not self._buffer:
            self._close()
            return
        self._state = DISCARDING
        self._reader = BodyReader(limits.discard_bytes + 1)
        self.deadline_s = clock() + limits.discard_s

    def _close(self) -> None:
        self._state = CLOSED
        self.deadline_s = clock() + self._front.limits.write_s
        self._transport.close()

    # reading, memory, names

    def _pause_reading(self) -> None:
        if not self._read_paused and self._state is not CLOSED:
            self._read_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def _hold(self, size: int) -> None:
        """Sets this connection's bytes of unfinished requests in the sum over all connections."""
        if size != self._held_bytes:
            self._front.buffered += size - self._held_bytes
            self._held_bytes = size

    @property
    def _name(self) -> str:
        return "a client" if self._client is None else f"{self._client[0]}:{self._client[1]}"


def _busy(limit: str, message: str) -> HttpViolation:
    return HttpViolation(HTTPStatus.TOO_MANY_REQUESTS, limit, message)


def _too_slow(limit: str, message: str) -> HttpViolation:
    return HttpViolation(HTTPStatus.REQUEST_TIMEOUT, limit, message)


def protocol_of(front: Front) -> type[asyncio.Protocol]:
    """Returns the protocol class for uvicorn's `http=` option, whose connections share `front`."""

    class FrontConnection(Connection):
        def __init__(self, *, server_state: ServerState, **unused: object) -> None:
            super().__init__(front, server_state)

    return FrontConnection
