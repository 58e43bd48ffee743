"""gRPC core's server on an event loop.

    gRPC core (C) -> completion queue -> one thread -> deque -> one wake-up for all of them -> IncomingCall

grpc.aio accepts one call after another and wakes the loop for each of its events: three times the processor
time of this (docs/results/protocols.md), and calls that arrive together are never in one batch. Here the
thread only waits and appends; everything else runs on the loop, so no state needs a lock.

This is the only module that imports grpc._cython.cygrpc, the layer on which grpc's own servers for Python
stand. It is not a public interface: pyproject.toml bounds its version, and tests/server/grpc runs all of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

log = logging.getLogger("polyrec.grpc")

REQUESTED = 64
"""Calls that the core may hand over before the loop has seen the first of them; more wait in the core."""
EVENTS_PER_ITERATION = 64
"""Most events handled before the loop serves others."""
NO_DEADLINE_S = float(2**63 - 1)
"""The deadline of a call without one: the core's infinite future."""
NO_FLAGS = 0
NEW_CALL: Final = "call"
SHUT_DOWN: Final = "shut down"
FULL = "Concurrent RPC limit exceeded!"

Metadata = Sequence[tuple[str, str | bytes]]
Received = Callable[["bytes | None"], object]
"""Takes the next message of a call; None: there is none, or the call has been canceled."""


class CoreServer:
    """Serves calls of all methods, `most_calls` at a time. Used from one event loop only.

    on_call: takes each call. options: of gRPC core.
    """

    def __init__(
        self,
        on_call: Callable[[IncomingCall], object],
        options: Sequence[tuple[str, int]],
        most_calls: int,
    ) -> None:
        self._on_call = on_call
        self._most_calls = most_calls
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(options, False)
        self._server.register_completion_queue(self._queue)
        self._events: deque[Any] = deque()
        self._is_woken = False
        self._calls: set[IncomingCall] = set()
        self._requested = 0
        self._is_shut_down = self._is_destroyed = False
        self._cancellation: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    def add_port(self, address: str, credentials: grpc.ServerCredentials | None = None) -> bool:
        """Listens at `host:port`; False if that is not possible. credentials: None: no encryption."""
        if credentials is None:
            return bool(self._server.add_http2_port(address.encode()))
        return bool(self._server.add_http2_port(address.encode(), credentials._credentials))

    def start(self) -> None:
        """Accepts calls, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._server.start()
        for _ in range(REQUESTED):
            self._request_call()
        threading.Thread(target=self._wait, name="grpc-events", daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """Whether no other event is known to wait."""
        return not self._events

    def begin_stop(self, grace_s: float) -> None:
        """Takes no more connections or calls; cancels those that have not ended by then."""
        loop = self._loop
        if loop is not None and self._cancellation is None:
            self._server.shutdown(self._queue, SHUT_DOWN)
            self._cancellation = loop.call_later(grace_s, self._server.cancel_all_calls)

    async def stopped(self) -> None:
        """Waits until every call has ended, and the port is closed."""
        if self._loop is not None:
            await self._ended.wait()

    def _request_call(self) -> None:
        self._server.request_call(self._queue, self._queue, NEW_CALL)
        self._requested += 1

    def _wait(self) -> None:
        """Moves events to the loop; runs in a thread of its own."""
        queue, events, loop = self._queue, self._events, self._loop
        assert loop is not None
        try:
            while True:
                event = queue.poll()
                if event.completion_type == cygrpc.CompletionType.queue_shutdown:
                    loop.call_soon_threadsafe(self._ended.set)
                    return
                events.append(event)
                # a call is freed with its last event, which must not be while this waits for the next
                event = None
                # set before the loop looks at the deque, so no event is left in it without a wake-up
                if not self._is_woken:
                    self._is_woken = True
                    loop.call_soon_threadsafe(self._handle_events)
        except RuntimeError:  # the loop has been closed, without a stop
            return

    def _handle_events(self) -> None:
        self._is_woken = False
        events = self._events
        for _ in range(EVENTS_PER_ITERATION):
            if not events:
                break
            event = events.popleft()
            try:
                self._handle(event)
            except Exception:
                log.exception("an event of gRPC could not be handled")
        else:
            if events and not self._is_woken:
                self._is_woken = True
                assert self._loop is not None
                self._loop.call_soon(self._handle_events)
        if self._is_shut_down:
            self._destroy_if_done()

    def _handle(self, event: Any) -> None:
        tag = event.tag
        if tag is NEW_CALL:
            self._requested -= 1
            if event.success:
                self._accept(event)
        elif tag is SHUT_DOWN:
            self._is_shut_down = True
        else:
            tag(event)

    def _accept(self, event: Any) -> None:
        if self._cancellation is None:
            self._request_call()
        call = IncomingCall(event, self._calls.discard)
        is_full = len(self._calls) >= self._most_calls
        self._calls.add(call)
        if is_full:
            call.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, FULL)
        else:
            self._on_call(call)

    def _destroy_if_done(self) -> None:
        """Ends the server once nothing of it is in progress."""
        if self._calls or self._requested or self._is_destroyed:
            return
        self._is_destroyed = True
        assert self._cancellation is not None
        self._cancellation.cancel()
        self._server.destroy()
        self._queue.shutdown()


class IncomingCall:
    """One call of a client: its messages, metadata and end.

    ended: is called with the call when nothing of it is in progress any more.
    on_cancel: set by whoever answers it; called at most once, when the client has canceled the call or its
    deadline has passed, unless it is finished.
    on_finish: called with its status, at most once, when it is finished.
    """

    __slots__ = (
        "_call",
        "_deadline_s",
        "_due",
        "_ended",
        "_is_begun",
        "_is_closed",
        "_metadata",
        "_received",
        "is_canceled",
        "is_finished",
        "method",
        "on_cancel",
        "on_finish",
        "trailing",
    )

    def __init__(self, event: Any, ended: Callable[[IncomingCall], object]) -> None:
        self._call = event.call
        self._metadata: Metadata = event.invocation_metadata
        self._deadline_s: float = event.call_details.deadline
        self._ended = ended
        self._is_begun = self._is_closed = False
        self._due = 0
        self._received: Received | None = None
        self.method: str = event.call_details.method.decode()
        self.is_canceled = self.is_finished = False
        self.on_cancel: Callable[[], object] | None = None
        self.on_finish: Callable[[grpc.StatusCode], object] | None = None
        self.trailing: Metadata = ()
        self._call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(NO_FLAGS),), self._closed)

    def invocation_metadata(self) -> Metadata:
        """The client's metadata."""
        return self._metadata

    def peer(self) -> str:
        """The client's address, as gRPC writes it."""
        return str(self._call.peer().decode())

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None if there is none."""
        if self._deadline_s >= NO_DEADLINE_S:
            return None
        return max(0.0, self._deadline_s - time.time())

    def receive(self, received: Received) -> None:
        """Has `received` called with the next message; one at a time."""
        self._received = received
        self._start((cygrpc.ReceiveMessageOperation(NO_FLAGS),), self._message)

    async def read(self) -> bytes | None:
        """The next message; None: the client sends no more."""
        read: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.receive(lambda message: None if read.done() else read.set_result(message))
        return await read

    async def write(self, message: bytes) -> None:
        """Sends a message, and waits until there is room for the next one."""
        if self.is_finished or self.is_canceled:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def sent(event: Any) -> None:
            self._done()
            if not written.done():
                written.set_result(None)

        self._start((*self._beginning(), cygrpc.SendMessageOperation(message, NO_FLAGS)), sent)
        await written

    def finish(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing: Metadata = (),
        message: bytes | None = None,
    ) -> None:
        """Ends the call; later calls are ignored. message: the response of a call that has one."""
        if self.is_finished:
            return
        self.is_finished = True
        self.on_cancel = None
        self.trailing = trailing
        if not self.is_canceled:
            operations = self._beginning()
            if message is not None:
                operations += (cygrpc.SendMessageOperation(message, NO_FLAGS),)
            status = cygrpc.SendStatusFromServerOperation(trailing, code.value[0], details.encode(), NO_FLAGS)
            self._start((*operations, status), self._sent)
        if self.on_finish is not None:
            self.on_finish(code)
            self.on_finish = None
        self._end_if_done()

    def _beginning(self) -> tuple[Any, ...]:
        """The operation that must come before the first message or the status."""
        if self._is_begun:
            return ()
        self._is_begun = True
        return (cygrpc.SendInitialMetadataOperation(None, NO_FLAGS),)

    def _start(self, operations: tuple[Any, ...], done: Callable[[Any], object]) -> None:
        self._due += 1
        self._call.start_server_batch(operations, done)

    def _done(self) -> None:
        self._due -= 1
        self._end_if_done()

    def _sent(self, event: Any) -> None:
        self._done()

    def _message(self, event: Any) -> None:
        self._due -= 1
        received, self._received = self._received, None
        assert received is not None
        received(event.batch_operations[0].message())
        self._end_if_done()

    def _closed(self, event: Any) -> None:
        """The last event of every call: its status has been sent, or it is canceled."""
        self._is_closed = True
        if event.batch_operations[0].cancelled() and not self.is_finished:
            self.is_canceled = True
            on_cancel, self.on_cancel = self.on_cancel, None
            if on_cancel is not None:
                on_cancel()
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_closed and self.is_finished and not self._due:
            self._ended(self)
