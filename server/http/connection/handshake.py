"""Performs TLS handshakes, before a connection becomes a `Connection` (connection.py) with its own limits.

An unfinished handshake costs the client one packet but the server a descriptor, so both their duration and
their number are limited. At the limit, the oldest handshake of the network with the most unfinished ones (an
IPv4 address or an IPv6 /64 prefix) is ended, so a client that opens thousands keeps out only itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

from polyrec.server.access.rates import network_of
from polyrec.server.app.background import start_task
from polyrec.server.http.connection.connection import Connection
from polyrec.server.http.connection.frontend import HttpFrontend, ServerState
from polyrec.server.http.connection.limits import HANDSHAKES_SHARE, Networks

HANDSHAKE_S = 5.0
"""Timeout of a TLS handshake."""


class Handshakes:
    """The unfinished handshakes of one server. context: the TLS context with certificate and key."""

    def __init__(self, context: ssl.SSLContext, frontend: HttpFrontend) -> None:
        self.context = context
        self._frontend = frontend
        self._networks = Networks[Handshake]()

    def begin(self, handshake: Handshake) -> None:
        """Adds a handshake; at the limit, ends another one."""
        if self._networks.total >= max(1, int(HANDSHAKES_SHARE * self._frontend.limits.connections)):
            oldest = next(self._networks.largest())
            self._frontend.exceeded("handshakes", f"{oldest.address} has the most unfinished TLS handshakes")
            oldest.abort()
        self._networks.add(handshake, handshake.network)

    def end(self, handshake: Handshake) -> None:
        """Removes a finished handshake; does nothing if it was removed already."""
        self._networks.discard(handshake, handshake.network)


class Handshake(asyncio.Protocol):
    """An accepted connection during its handshake. connect: creates the protocol that takes over."""

    _socket: socket.socket
    _task: asyncio.Task[None]

    def __init__(self, handshakes: Handshakes, connect: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes = handshakes
        self._connect = connect
        self.address = self.network = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        accepted = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses
        peer = accepted.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self.network = network_of(self.address)
        # `start_tls` would lose data that arrives before it starts, so a new transport takes the socket
        try:
            self._socket = socket.socket(fileno=os.dup(accepted.get_extra_info("socket").fileno()))
        except OSError:  # out of file descriptors
            return
        finally:
            accepted.abort()
        self._handshakes.begin(self)
        self._task = start_task(self._shake_hands(), "a TLS handshake")

    def abort(self) -> None:
        """Ends the connection."""
        self._handshakes.end(self)
        self._task.cancel()
        self._task.add_done_callback(lambda _: self._socket.close())  # in case the task never started

    def succeeded(self, transport: asyncio.BaseTransport) -> None:
        """Hands the transport to the connection's protocol."""
        self._handshakes.end(self)
        protocol = self._connect()
        cast(asyncio.Transport, transport).set_protocol(protocol)
        protocol.connection_made(transport)

    async def _shake_hands(self) -> None:
        loop, context = asyncio.get_running_loop(), self._handshakes.context
        try:
            with suppress(OSError):  # no TLS, no common version, too slow, or the client has left
                await loop.connect_accepted_socket(
                    lambda: _Succeeded(self), self._socket, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
                )
        finally:
            self._handshakes.end(self)


class _Succeeded(asyncio.Protocol):
    """Takes over at the end of a handshake, as its task may resume only after a request has arrived."""

    def __init__(self, handshake: Handshake) -> None:
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshake.succeeded(transport)


def connection_class(frontend: HttpFrontend, context: ssl.SSLContext | None = None) -> type[asyncio.Protocol]:
    """Returns a protocol class for uvicorn's public `http=` option; its connections share `frontend`.

    uvicorn requires the constructor's keywords and a `shutdown` method
    (tests/server/http/connection/test_connection.py checks both against the installed version).

    context: the TLS context; the class then does the handshake before the connection begins.
    """

    class FrontendConnection(Connection):
        def __init__(self, *, server_state: ServerState, **unused: object) -> None:
            super().__init__(frontend, server_state)

    if context is None:
        return FrontendConnection
    handshakes = Handshakes(context, frontend)

    class FrontendHandshake(Handshake):
        def __init__(self, *, server_state: ServerState, **unused: object) -> None:
            super().__init__(handshakes, partial(Connection, frontend, server_state))

    return FrontendHandshake
