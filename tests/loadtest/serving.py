"""A small HTTP server for the load driver to talk to, in the loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Server:
    """A test server and the requests that it received.

    bodies: of all requests, in order of arrival. connections: how many were made; max_open: at once.
    """

    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    max_open: int = 0
    open: int = 0

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Answer = Callable[[int], bytes | None]
"""Number of the request -> raw answer; b'' closes the connection, None never answers."""


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return await reader.readexactly(int(length[0].split(b":")[1])) if length else b""


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Server]:
    """Serves on a free port of 127.0.0.1 inside the `async with`."""
    server = Server()
    stop = asyncio.Event()
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        handlers.add(task)
        server.connections += 1
        server.open += 1
        server.max_open = max(server.max_open, server.open)
        try:
            while True:
                body = await _request(reader)
                server.bodies.append(body)
                raw = answer(len(server.bodies) - 1)
                if raw is None:
                    await stop.wait()
                if not raw:
                    return
                writer.write(raw)
                await writer.drain()
                if b"Connection: close" in raw:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            server.open -= 1
            handlers.discard(task)
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        stop.set()
        listener.close()
        while handlers:
            await asyncio.sleep(0)
