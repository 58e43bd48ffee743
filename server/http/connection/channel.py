"""Wraps the transport of one connection: addresses, flow control, memory accounting and closing.

connection.py decides what to read and answer; this module applies that to the transport. It also tracks the
connection's part of the memory that all connections together may use.
"""

from __future__ import annotations

import asyncio
from typing import cast

from starlette.types import Scope

from polyrec.server.access.rates import network_of
from polyrec.server.http.connection.asgi import Address, make_scope
from polyrec.server.http.connection.frontend import HttpFrontend
from polyrec.server.http.connection.head import Head
from polyrec.server.http.connection.reply import CONTINUE


class Channel:
    """The transport of one connection.

    client, server: address and port of both ends, None on a Unix socket.
    network: the client's network (`access.rates.network_of`).
    write: sends bytes. It is the transport's own method, since a wrapper would cost a call per answer.
    write_paused: whether the write buffer is full.
    closed: whether reading has ended.
    """

    __slots__ = (
        "_frontend", "_held_bytes", "_transport", "client", "closed", "network", "read_paused", "scheme",
        "server", "write", "write_paused",
    )  # fmt: skip

    def __init__(self, transport: asyncio.BaseTransport, frontend: HttpFrontend) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses
        self._frontend = frontend
        self._held_bytes = 0
        self.write = self._transport.write
        self.closed = self.read_paused = self.write_paused = False
        self.client: Address = None
        self.server: Address = None
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if isinstance(peer, tuple) and isinstance(own, tuple):
            self.client, self.server = (peer[0], peer[1]), (own[0], own[1])
        self.network = network_of(self.client[0] if self.client else "")
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"

    @property
    def name(self) -> str:
        """Client address and port for logs."""
        return "a client" if self.client is None else f"{self.client[0]}:{self.client[1]}"

    def scope(self, head: Head, request_id: bytes) -> Scope:
        """Returns the ASGI scope of a request on this connection. Raises Malformed."""
        return make_scope(head, self.client, self.server, self.scheme, request_id.decode("ascii"))

    @property
    def has_unsent_bytes(self) -> bool:
        """Whether written bytes still wait for the client to read them."""
        return self._transport.get_write_buffer_size() > 0

    def request_body(self) -> None:
        """Sends 100 Continue, for which the client waits before sending the body."""
        self.write(CONTINUE)

    def pause_reading(self) -> None:
        """Stops reading; what the client sends stays in the kernel."""
        if not self.read_paused and not self.closed:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continues reading."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def hold(self, size: int) -> None:
        """Sets the bytes of unfinished requests that this connection holds, and updates the total."""
        if size != self._held_bytes:
            self._frontend.buffered += size - self._held_bytes
            self._held_bytes = size

    def close_sending(self) -> bool:
        """Closes the sending side once all is written; returns False if the transport (TLS) cannot."""
        if not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    def close(self) -> None:
        """Closes the connection once the client has read everything written."""
        self.closed = True
        self._transport.close()

    def abort(self) -> None:
        """Closes the connection without waiting for the client."""
        self.closed = True
        self._transport.abort()

    def lost(self) -> None:
        """Releases the held bytes after the connection was lost."""
        self.closed = True
        self.hold(0)
