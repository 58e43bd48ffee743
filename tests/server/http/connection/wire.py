"""Clients on bare sockets, and connections in this process whose transport remembers what was written."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from uvicorn.server import ServerState

from polyrec.server.app.engine import Engine
from polyrec.server.child import ServerProcess
from polyrec.server.http.app import create_app
from polyrec.server.http.connection.access_log import AccessLog
from polyrec.server.http.connection.connection import Connection
from polyrec.server.http.connection.frontend import HttpFrontend
from polyrec.server.http.connection.limits import ConnectionLimits


@dataclass
class Wire:
    """A connection to a server, made again once it was closed."""

    server: ServerProcess
    connection: socket.socket | None = field(default=None)

    def ask(self, pieces: list[bytes]) -> tuple[bytes, bytes, bool]:
        """Head without date and request id, body, whether the connection is still good."""
        if self.connection is None:
            host, port = self.server.url.removeprefix("http://").split(":")
            self.connection = socket.create_connection((host, int(port)), timeout=60)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            self.connection.sendall(piece)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        head, _, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        while len(body) < int(length[1]):
            body += self._more()
        open_ = b"connection: close" not in head
        if not open_:
            assert self.connection.recv(1) == b""
            self.close()
        return re.sub(rb"(date|x-request-id): [^\r]*", b"", head), body, open_

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _more(self) -> bytes:
        assert self.connection is not None
        data = self.connection.recv(65536)
        assert data
        return data


def exchange(server: ServerProcess, *pieces: bytes) -> bytes:
    """Sends the pieces and reads until the server closes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for piece in pieces:
            connection.sendall(piece)
        received = b""
        while data := connection.recv(65536):
            received += data
    return received


def head(path: str, length: int, *more: bytes) -> bytes:
    """The head of a POST."""
    lines = [b"POST %s HTTP/1.1" % path.encode(), b"Host: x", b"Content-Length: %d" % length, *more]
    return b"\r\n".join([*lines, b"", b""])


def status_and_body(answer: bytes) -> tuple[int, Any]:
    """Parses one JSON answer."""
    top, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in top
    return int(top.split()[1]), json.loads(body)


class Transport(asyncio.Transport):
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


def connected(engine: Engine) -> tuple[Connection, Transport]:
    """A connection without a network. To be made on a loop."""
    app = create_app(engine)
    connection, transport = Connection(HttpFrontend(app, app.hot, engine), ServerState()), Transport()
    connection.connection_made(transport)
    return connection, transport


@dataclass
class Local:
    """A server on this loop. front: what its connections share."""

    frontend: HttpFrontend
    port: int

    async def open(self, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))

    async def exchange(self, *pieces: bytes) -> bytes:
        """Sends the pieces and reads until the server closes."""
        reader, writer = await self.open()
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        received = await reader.read(-1)
        writer.close()
        return received


@asynccontextmanager
async def local(
    engine: Engine, limits: ConnectionLimits, access_log: AccessLog | None = None
) -> AsyncIterator[Local]:
    """Serves an engine on this loop with these limits."""
    app = create_app(engine)
    front = HttpFrontend(app, app.hot, engine, limits, access_log)
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(front, state), "127.0.0.1", 0)
    sweeping = asyncio.create_task(front.sweep())
    try:
        yield Local(front, server.sockets[0].getsockname()[1])
    finally:
        sweeping.cancel()
        for connection in tuple(state.connections):
            connection.abort()
        server.close()
        await server.wait_closed()
