"""Graceful shutdown: on a signal, answers every accepted connection and then stops the server.

    1. grace period    Starts on SIGTERM. /readyz answers 503 so that load balancers notice, but requests are
                       still accepted and answered, with `connection: close`. A second signal, Ctrl-C or an
                       earlier /v1/admin/drain skips this phase. SIGHUP acts like SIGTERM unless it reloads
                       files or is ignored (nohup).
    2. close           The accept queue is emptied, then new connections are refused. Accepted connections
                       have FIRST_REQUEST_S to send a first request.
    3. drain timeout   Requests in progress may finish.
    4. end             Requests that still wait, or have not fully arrived, are answered 503.

Closing a listening socket resets every connection in its accept queue. So a socket filter first drops new
SYNs, the queue is accepted until it is empty, and only then is the socket closed. A client whose SYN was
dropped retries after a second (Linux) and is refused, so it can safely try another server.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from polyrec.server.app.background import start_task
from polyrec.server.app.engine import LifecycleState
from polyrec.server.repository.repository import ModelRepository

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger("polyrec.server")

QUEUE_S = 0.25
"""Maximum wait for the accept queue to become empty."""
HANDSHAKE_S = 0.01
"""Wait for TCP handshakes that began before SYNs were dropped."""
FIRST_REQUEST_S = 0.25
"""Maximum wait for the first request on connections that have sent nothing yet."""
STEP_S = 0.005
"""Polling interval."""

_SO_ATTACH_FILTER = 26
_NO_SYN = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the byte of the TCP header with its flags
        (0x54, 0, 0, 0x12),  # mask SYN and ACK
        (0x15, 0, 1, 0x02),  # SYN without ACK?
        (0x06, 0, 0, 0),  # drop
        (0x06, 0, 0, 0xFFFFFFFF),  # keep
    )
)
"""Classic BPF program that drops packets which open a connection and keeps all others."""
_ACCEPT_QUEUE = struct.Struct("24xI")
"""struct tcp_info up to tcpi_unacked, which for a listening socket is the length of its accept queue."""


class Drain:
    """The shutdown sequence of one server.

    models: the served models, whose waiting requests are failed at the end.
    listener: the socket that the server accepts from.
    on_stop: called once the server accepts no more connections.
    on_end: called when the drain timeout is over.
    """

    def __init__(
        self,
        models: ModelRepository,
        listener: socket.socket,
        grace_s: float,
        timeout_s: float,
        on_stop: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._models = models
        self._on_end = on_end
        self._on_stop = on_stop
        self._listener = listener
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def signaled(self, server: uvicorn.Server, signal_number: int) -> None:
        """Schedules the shutdown. A signal handler may run between any two bytecodes, so it does no more."""
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(self._begin, server, signal_number)

    def _begin(self, server: uvicorn.Server, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        if server.should_exit:
            log.warning("%s again: the server exits immediately", name)
            server.force_exit = True
            return
        again = self._models.state is not LifecycleState.READY
        self._models.enter(LifecycleState.DRAINING)
        if self._task is None:
            self._task = start_task(self._end(server), "the end of the server")
        elif self._hurry.is_set():
            server.should_exit = True
        if again or signal_number == signal.SIGINT:
            self._hurry.set()
        grace_s = 0 if self._hurry.is_set() else self._grace_s
        log.warning(
            "%s: draining; new connections are accepted for %g s more, then the server ends", name, grace_s
        )

    async def _end(self, server: uvicorn.Server) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._grace_s)
        drop_new_connections(self._listener)
        await asyncio.sleep(HANDSHAKE_S)
        await _until(lambda: not accept_queue_length(self._listener), QUEUE_S)
        for accepting in server.servers:
            accepting.close()
        self._on_stop()
        await _until(lambda: not server.server_state.connections, FIRST_REQUEST_S)
        loop = asyncio.get_running_loop()
        for end in (self._models.fail_all, self._on_end):
            loop.call_later(self._timeout_s, end)
        log.warning("no more connections are accepted; requests in progress have %g s", self._timeout_s)
        server.should_exit = True


def drop_new_connections(listener: socket.socket) -> None:
    """Makes the kernel drop new SYNs to a listening socket; handshakes in progress complete."""
    program = ctypes.create_string_buffer(_NO_SYN, len(_NO_SYN))
    fprog = struct.pack("HP", len(_NO_SYN) // 8, ctypes.addressof(program))
    with suppress(OSError):  # some sandboxes have no socket filters; a few connections may then be reset
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)


def accept_queue_length(listener: socket.socket) -> int:
    """Returns the number of connections in the accept queue, 0 if the system does not report it."""
    try:
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACCEPT_QUEUE.size)
    except OSError:
        return 0
    (waiting,) = _ACCEPT_QUEUE.unpack(info)
    return int(waiting)


async def _until(done: Callable[[], bool], max_s: float) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + max_s
    while not done() and loop.time() < until_s:
        await asyncio.sleep(STEP_S)
