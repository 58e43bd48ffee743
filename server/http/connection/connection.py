"""One HTTP/1.1 connection, which reads and answers one request at a time (states.py has its states).

uvicorn creates a `Connection` per accepted socket. POSTs to hot endpoints are answered without ASGI
(hot_request.py), other requests by the application (asgi.py). A head is parsed only once it is complete, with
a new parser, and later bytes stay in the buffer until then. So how a request is read depends neither on TCP
segmentation nor on earlier requests. `HttpFrontend.sweep` enforces each state's deadline.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from starlette.types import Scope

from polyrec.planner.routing.admission.arrival import Arrival
from polyrec.server.clock import clock
from polyrec.server.errors import HttpViolation, Stopping, TooBusy, TooLarge, TooSlow
from polyrec.server.http.connection.asgi import MAX_WAITING_BYTES, AsgiRequest
from polyrec.server.http.connection.body_reader import BodyReader
from polyrec.server.http.connection.channel import Channel
from polyrec.server.http.connection.frontend import HttpFrontend, ServerState
from polyrec.server.http.connection.head import REQUEST_ID, Head, find_end, parse_head
from polyrec.server.http.connection.hot_endpoint import HotEndpoint
from polyrec.server.http.connection.hot_request import HotRequest
from polyrec.server.http.connection.limits import CLOSE_S, LAST_S
from polyrec.server.http.connection.reply import HeaderList, error_reply, to_wire
from polyrec.server.http.connection.states import (
    CLOSED,
    DISCARDING,
    READING_BODY,
    READING_HEAD,
    WAITING,
    WRITING,
)
from polyrec.server.request_ids import log_extra, new_request_id, request_id

log = logging.getLogger("polyrec.http")

STEPS_PER_TURN = 16
"""Maximum heads and body pieces that one connection reads in a turn."""
NEVER_S = float("inf")


class Connection(asyncio.Protocol):
    """One client's connection. The frontend uses it as a `SweptConnection`."""

    _channel: Channel
    network: str

    def __init__(self, frontend: HttpFrontend, server_state: ServerState) -> None:
        self._frontend = frontend
        self._server_state = server_state
        self._state = READING_HEAD
        self.deadline_s = NEVER_S
        self._buffer = self._request_id = b""
        self._requests = 0
        self._answered_s = self._begun_s = 0.0
        self._head_begun = self._advancing = self.awaits_turn = False
        self._keep_alive = True
        self._head: Head | None = None
        self._request: HotRequest | AsgiRequest | None = None
        self._reader = BodyReader(0)

    # callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._channel = Channel(transport, self._frontend)
        self.network = self._channel.network
        self._server_state.connections.add(self)
        if self._frontend.join(self):
            self._await_request()
        else:
            self._reject_and_close(TooBusy("connections", "the server has no room for more connections"))
            self._close()  # the sweep does not know this connection

    def connection_lost(self, exc: Exception | None) -> None:
        state, self._state = self._state, CLOSED
        self._channel.lost()
        self._frontend.leave(self)
        self._server_state.connections.discard(self)
        if self._request is not None:
            self._request.disconnect()
            if state is not WAITING:
                self._request = None

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        self.advance()

    def pause_writing(self) -> None:
        self._channel.write_paused = True

    def resume_writing(self) -> None:
        self._channel.write_paused = False
        if self._state is WRITING:
            self._await_request()
            self.advance()

    # called by uvicorn and the frontend

    def shutdown(self) -> None:
        """Closes the connection, after answering a request that has begun to arrive."""
        self._keep_alive = False
        if self.idle:
            self._close()
            self.deadline_s = min(self.deadline_s, clock() + CLOSE_S)

    @property
    def idle(self) -> bool:
        """Whether no request has begun to arrive."""
        return self._state is READING_HEAD and not self._buffer

    @property
    def waiting(self) -> bool:
        """Whether a request has arrived and has no answer yet."""
        return self._state is WAITING

    def time_out(self) -> None:
        """Rejects the request or closes the connection; called when its state's deadline has passed."""
        limits = self._frontend.limits
        if self._state is READING_BODY or (self._state is READING_HEAD and self._head_begun):
            is_body = self._state is READING_BODY
            part, limit_s = ("body", limits.body_s) if is_body else ("head", limits.head_s)
            self._reject_and_close(TooSlow(f"{part}_time", f"the {part} did not arrive within {limit_s:g} s"))
        elif self._state is READING_HEAD and not self._channel.has_unsent_bytes:
            self._frontend.count("idle_time")
            self._close()
        else:
            # a closed connection with nothing unsent only waits for the client's TLS close_notify
            unread = self._state is not CLOSED or self._channel.has_unsent_bytes
            if self._state is not DISCARDING and unread:
                self._frontend.exceeded("write_time", f"{self._channel.name} did not read its answer")
            self.abort()

    def stop(self) -> None:
        """Rejects a request being received and closes the connection within LAST_S, as the server stops."""
        if self.idle:
            self._close()
        elif self._state in (READING_HEAD, READING_BODY):
            self._reject_and_close(Stopping())
        if self._state is not WAITING:
            self.deadline_s = min(self.deadline_s, clock() + LAST_S)

    def abort(self) -> None:
        """Closes the connection without waiting for the client."""
        self._state = CLOSED
        self.deadline_s = NEVER_S
        self._channel.abort()

    # requests

    def advance(self) -> None:
        """Processes the buffer until more bytes are needed or a request waits for its answer."""
        if self._advancing or self.awaits_turn:
            return
        self._advancing = True
        try:
            for _ in range(STEPS_PER_TURN):
                if not self._step():
                    break
            else:
                # leave further data in the kernel, or one client could fill memory and block the loop
                self._channel.pause_reading()
                self._frontend.queue_turn(self)
        except Exception:
            extra = log_extra(self._request_id)
            log.exception("the connection of %s failed", self._channel.name, extra=extra)
            self.abort()
        finally:
            self._advancing = False
        held = len(self._buffer) + (0 if self._request is None else self._request.waiting_bytes)
        self._channel.hold(held)
        if held and self._frontend.full:
            self._release_memory()
        if self._channel.read_paused and self._wants_bytes:
            self._channel.resume_reading()

    @property
    def _wants_bytes(self) -> bool:
        """Whether more bytes are needed or may be buffered."""
        if self.awaits_turn or self._state is CLOSED:
            return False
        if self._state is READING_BODY and self._request is not None:
            return self._request.waiting_bytes <= self._request.max_waiting_bytes
        return self._state not in (WAITING, WRITING) or len(self._buffer) <= MAX_WAITING_BYTES

    def _release_memory(self) -> None:
        """Ends this connection's unfinished request; called when all connections hold too many bytes."""
        if self._state in (READING_HEAD, READING_BODY):
            full = TooBusy("buffered_bytes", "unfinished requests use all memory allowed for them")
            self._reject_and_close(full)
        elif self._state in (WAITING, WRITING) and self._buffer:
            self._frontend.exceeded("buffered_bytes", f"{self._channel.name} sent more than it read answers")
            self.abort()
        self._channel.hold(len(self._buffer))

    def _step(self) -> bool:
        """Reads one head or the received part of a body; returns False if it must wait."""
        try:
            if self._state is READING_HEAD:
                return self._take_head()
            if self._state is READING_BODY:
                return self._take_body()
        except HttpViolation as violation:
            self._reject_and_close(violation)
            return True
        if self._state is DISCARDING:
            return self._discard()
        if self._state is CLOSED:
            self._buffer = b""
        elif len(self._buffer) > MAX_WAITING_BYTES:
            self._channel.pause_reading()
        return False

    def _take_head(self) -> bool:
        data = self._buffer.lstrip(b"\r\n")  # a blank line may precede a request
        end = find_end(data) if data else -1
        if end < 0:
            if self._buffer and not self._head_begun:
                self._head_begun = True
                self.deadline_s = clock() + self._frontend.limits.head_s
            self._buffer = data
            return False
        self._buffer = data[end:]
        self._begin(parse_head(data[:end]))
        return True

    def _begin(self, head: Head) -> None:
        """Starts a request at a hot endpoint or in the application, or rejects it by its head."""
        frontend = self._frontend
        self._head = head
        self._request_id = request_id(head.given_id)
        if frontend.access_log is not None:
            self._begun_s = clock()
        self._keep_alive = head.keep_alive
        self._reader = BodyReader(head.length)
        self._state = READING_BODY
        self._requests += 1
        if self._requests >= frontend.limits.requests:
            self._keep_alive = False
            frontend.exceeded("requests", f"{self._channel.name} sent {self._requests} and has to reconnect")
        is_whole = not self._reader.length_unknown and len(self._buffer) >= self._reader.left
        hot = frontend.hot.get(head.target) if head.method == b"POST" else None
        try:
            if hot is None:
                scope, resume = self._scope(), self._channel.resume_reading
                self._request = AsgiRequest(frontend.app, scope, self._reply, resume)
                frontend.in_turn(self.network, partial(self._request.start, self._server_state.tasks))
            elif not self._begin_hot(hot, head, is_whole):
                return
        except Exception as e:
            self._reject(e)
            return
        if not is_whole:
            self.deadline_s = clock() + frontend.limits.body_s
            if head.expects_continue and not self._buffer:
                self._channel.request_body()

    def _begin_hot(self, hot: HotEndpoint, head: Head, is_whole: bool) -> bool:
        """Starts a request at a hot endpoint; returns False if it was rejected early instead.

        is_whole: whether the whole body has arrived.
        """
        frontend = self._frontend
        frontend.begin_request()
        rejected = hot.reject_early(head.headers, head.length, self._scope, self._arrival(), self._buffer)
        if rejected is not None:
            self._reply(rejected.status, *rejected.encoded(()))
            return False
        in_turn = partial(frontend.in_turn, self.network)
        self._request = request = HotRequest(
            hot, head, self._scope(), is_whole, self._reply, self._reject, self._arrival, in_turn
        )
        request.admit()
        return True

    def _arrival(self) -> Arrival:
        """Estimates when the bytes being read arrived."""
        return self._frontend.arrival(self._answered_s)

    def _scope(self) -> Scope:
        """Returns the current request's ASGI scope. Raises Malformed."""
        assert self._head is not None
        return self._channel.scope(self._head, self._request_id)

    def _take_body(self) -> bool:
        pieces, self._buffer, complete = self._reader.take(self._buffer)
        request = self._request
        assert request is not None
        try:
            for piece in pieces:
                request.feed(piece)
            if complete:
                self._state = WAITING
                self.deadline_s = NEVER_S
                request.end_body()
        except HttpViolation:
            raise
        except Exception as e:
            self._reject(e)
            return True
        if request.waiting_bytes > request.max_waiting_bytes:
            self._channel.pause_reading()
        return complete

    # answers

    def _reject(self, error: Exception) -> None:
        """Answers the current request with an error."""
        if isinstance(error, TooLarge):
            self._frontend.exceeded("body_bytes", f"{self._channel.name}: {error}", self._request_id)
        reply = error_reply(error) if self._request is None else self._request.reject(error)
        if reply is None:
            self._request = None
        else:
            self._reply(reply.status, *reply.encoded(()))

    def _reject_and_close(self, violation: HttpViolation) -> None:
        """Answers a request that violates HTTP or a limit, and closes, as the next one cannot be located."""
        if not self._request_id:
            self._request_id = new_request_id()
            self._head = None  # it belongs to an earlier request
            self._begun_s = clock()
        self._frontend.exceeded(violation.limit, f"{self._channel.name}: {violation}", self._request_id)
        if self._request is not None:
            self._request.abandon(violation)
        self._request = None
        self._reader = BodyReader(0)
        self._state = READING_BODY
        self._keep_alive = False
        reply = error_reply(violation)
        self._reply(reply.status, *reply.encoded(()))

    def _reply(self, status: int, headers: HeaderList, body: bytes, close: bool = False) -> None:
        """Writes an answer and enters the next state. close: whether to close the connection after it."""
        state, limits = self._state, self._frontend.limits
        if state is not READING_BODY and state is not WAITING:
            return  # already answered, or the client has left
        unread = state is READING_BODY
        if close or self._reader.left > limits.discard_bytes or self._frontend.draining:
            self._keep_alive = False
        if self._head is not None and self._head.method == b"HEAD":
            body = b""
        headers = (*self._server_state.default_headers, (REQUEST_ID, self._request_id), *headers)
        self._channel.write(to_wire(status, headers, body, self._keep_alive))
        if (access_log := self._frontend.access_log) is not None and access_log.samples():
            access_log.answered(self._request_id, self._head, self._request, status, clock() - self._begun_s)
        self._request = None
        self._request_id = b""
        rest = self._reader.skip(self._buffer) if unread else self._buffer
        if not self._keep_alive:
            self._linger(unread)
        elif rest is None:
            self._state = DISCARDING
            self.deadline_s = clock() + limits.body_s
        else:
            self._buffer = rest
            if self._channel.write_paused:
                self._state = WRITING
                self.deadline_s = clock() + limits.write_s
            else:
                self._await_request()
        if (self._buffer or self._channel.read_paused) and not self._advancing:
            self._frontend.queue_turn(self)

    def _discard(self) -> bool:
        """Drops received bytes of a request that was answered before it had fully arrived."""
        try:
            _, self._buffer, complete = self._reader.take(self._buffer)
        except HttpViolation:
            self.abort()
            return False
        if self._reader.size > self._frontend.limits.discard_bytes or (complete and not self._keep_alive):
            self.abort()
        elif complete:
            self._await_request()
            return True
        return False

    def _await_request(self) -> None:
        """Waits for the next request."""
        self._state = READING_HEAD
        self._head_begun = False
        now_s = clock()
        self.deadline_s = now_s + self._frontend.limits.idle_s
        if not self._buffer:
            # an empty buffer means the client waits for its answer before it sends again
            self._answered_s = now_s
            self._channel.resume_reading()

    def _linger(self, unread: bool) -> None:
        """Closes the sending side, and keeps reading until the client closes its side.

        With unread data at the close, the kernel would reset the connection and the client lose the answer.
        """
        limits = self._frontend.limits
        if not self._channel.close_sending() and not unread and not self._buffer:
            self._close()
            return
        self._state = DISCARDING
        self._reader = BodyReader(limits.discard_bytes + 1)
        self.deadline_s = clock() + limits.discard_s

    def _close(self) -> None:
        self._state = CLOSED
        self.deadline_s = clock() + self._frontend.limits.write_s
        self._channel.close()
