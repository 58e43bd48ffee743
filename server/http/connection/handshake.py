"""TLS handshakes: encrypted connections before the frontend takes them over.

A connection comes in as accepted; once its handshake has succeeded, it goes on as a `Connection`, which has
limits of its own. An unfinished handshake costs its client a packet and the server a descriptor, so their
time and number are limited. At the limit, the oldest of the address (of IPv6 the /64 prefix) that has most of
them gives way: a client that opens thousands keeps out itself, not others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from polyrec.server.app.background import start_task
from polyrec.server.http.connection.frontend import HttpFrontend
from polyrec.server.http.connection.limits import HANDSHAKES_SHARE, Networks
from polyrec.server.http.rates import network_of

HANDSHAKE_S = 5.0
"""Limit of a TLS handshake."""


class Handshakes:
    """The unfinished handshakes of one server. context: its certificate and key."""

    def __init__(self, context: ssl.SSLContext, frontend: HttpFrontend) -> None:
        self.context = context
        self._frontend = frontend
        self._most = max(1, int(HANDSHAKES_SHARE * frontend.limits.connections))
        self._networks = Networks[Handshake]()

    def begin(self, handshake: Handshake) -> None:
        """Adds a handshake; at the limit another one is ended."""
        if self._networks.total >= self._most:
            oldest = next(self._networks.largest())
            self._frontend.exceeded("handshakes", f"{oldest.address} has the most unfinished TLS handshakes")
            oldest.abort()
        self._networks.add(handshake, handshake.network)

    def end(self, handshake: Handshake) -> None:
        """Removes a handshake that has succeeded or failed; again does nothing."""
        self._networks.discard(handshake, handshake.network)


class Handshake(asyncio.Protocol):
    """An accepted connection until its handshake is over. connect: makes the protocol that follows."""

    _socket: socket.socket
    _task: asyncio.Task[None]

    def __init__(self, handshakes: Handshakes, connect: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes = handshakes
        self._connect = connect
        self.address = self.network = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        accepted = cast(asyncio.Transport, transport)  # uvloop's has its methods, but is no subclass
        peer = accepted.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self.network = network_of(self.address)
        # `start_tls` would lose what arrives before its first step, so the socket gets another transport
        try:
            self._socket = socket.socket(fileno=os.dup(accepted.get_extra_info("socket").fileno()))
        except OSError:  # no descriptor is free
            return
        finally:
            accepted.abort()
        self._handshakes.begin(self)
        self._task = start_task(self._shake_hands(), "a TLS handshake")

    def abort(self) -> None:
        """Ends the connection."""
        self._handshakes.end(self)
        self._task.cancel()
        self._task.add_done_callback(lambda _: self._socket.close())  # of one that has not begun

    def succeeded(self, transport: asyncio.BaseTransport) -> None:
        """Goes on as a connection, which no other handshake can end."""
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
    """The end of a handshake. Its task learns of it later, when the connection may have a request already."""

    def __init__(self, handshake: Handshake) -> None:
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshake.succeeded(transport)
