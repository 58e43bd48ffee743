"""Implements the HTTP/1.1 connections of a load driver; requests and answers are identified by number.

One request is in flight per connection, so no request waits for another one of the driver. A request takes
the connection that has been idle longest. When all are busy, another is opened, up to a limit beyond which
requests wait in order. Nothing is sent twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from polyrec.models.errors import PolyrecError

NO_ANSWER = 0
FIRST_ERROR = 400
"""The lowest HTTP status of an error, whose body gives the reason."""
PATH = b"x-polyrec-path"
DEGRADED = b'"degraded":true'


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of one request.

    status: HTTP status, or NO_ANSWER with the reason in `error`.
    path: header X-Polyrec-Path, empty if absent.
    degraded: whether the body says that quality was degraded; found by a byte search, since parsing every
    answer would make the driver late.
    body: only of an error, or if the pool keeps bodies.
    """

    status: int
    error: str = ""
    path: bytes = b""
    degraded: bool = False
    body: bytes = b""


Answered = Callable[[int, Answer], None]
"""(request number, how it ended)."""


class LoadError(PolyrecError):
    """Raised for a load test that cannot start, or whose figures would be wrong."""


@dataclass(frozen=True, slots=True)
class Target:
    """The address of requests, and the headers that they share.

    url: `http://host[:port]/path[?query]`. headers: added to each request as they are.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise LoadError(f"url '{self.url}': give http://host:port/path")
        try:
            _ = parts.port
        except ValueError as e:
            raise LoadError(f"url '{self.url}': {e}") from None
        for name, value in self.headers.items():
            if not name or any(c in name + value for c in "\r\n"):
                raise LoadError(f"header '{name}': a name and a value on one line are needed")

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return cast(str, parts.hostname), parts.port or 80

    def request(self, body: bytes | None, headers: Mapping[str, str] | None = None) -> bytes:
        """Returns one whole request: POST with a body, GET without. headers: additional headers of this
        request.
        """
        parts = urlsplit(self.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in {**self.headers, **(headers or {})}.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class Connection(asyncio.Protocol):
    """One keep-alive connection; httptools calls its methods as an answer arrives."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.in_flight: int | None = None
        self._path = b""
        self._degraded = False
        self._tail = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)

    def send(self, index: int, payload: bytes) -> None:
        self.in_flight = index
        self._path, self._degraded, self._tail = b"", False, b""
        self._body.clear()
        self.transport.write(payload)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as e:
            self._finish(Answer(NO_ANSWER, f"answer is not HTTP: {e}"))
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == len(PATH) and name.lower() == PATH:
            self._path = value

    def on_body(self, body: bytes) -> None:
        if self.pool.bodies or self.parser.get_status_code() >= FIRST_ERROR:
            self._body.append(body)
        # keep the tail, because an answer may be split inside the pattern
        whole = self._tail + body if self._tail else body
        if DEGRADED in whole:
            self._degraded = True
        self._tail = whole[1 - len(DEGRADED) :]

    def on_message_complete(self) -> None:
        reusable = self.in_flight is not None and self.parser.should_keep_alive()
        body = b"".join(self._body)
        self._finish(Answer(self.parser.get_status_code(), "", self._path, self._degraded, body))
        if reusable:
            self.pool.release(self)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(Answer(NO_ANSWER, "connection lost"))
        self.pool.forget(self)

    def _finish(self, answer: Answer) -> None:
        if self.in_flight is not None:
            index, self.in_flight = self.in_flight, None
            self.pool.answered(index, answer)


class Pool:
    """Sends requests to one target and reports how each ended.

    limit: maximum number of open connections. held_back: number of requests that found all of them busy.
    bodies: whether to keep the bodies of all answers, not only of errors.
    """

    def __init__(self, target: Target, limit: int, answered: Answered, bodies: bool = False) -> None:
        self.limit = limit
        self.bodies = bodies
        self.answered = answered
        self.held_back = 0
        self._address = target.address
        self._open: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._open)

    async def open(self, connections: int) -> None:
        """Connects before the first request, so that no request pays for it. Raises LoadError."""
        host, port = self._address
        try:
            first = await self._connect()
            # resolve the name once, not for each connection opened under load
            self._address = first.transport.get_extra_info("peername")[:2]
            await asyncio.gather(*(self._connect() for _ in range(min(connections, self.limit) - 1)))
        except OSError as e:
            raise LoadError(f"cannot connect to {host}:{port}: {e.strerror or e}; is it running?") from None

    def send(self, index: int, payload: bytes) -> None:
        if self._idle:
            self._idle.popleft().send(index, payload)
            return
        self._waiting.append((index, payload))
        self._grow()
        if len(self._waiting) > len(self._opening):
            self.held_back += 1

    def release(self, connection: Connection) -> None:
        """Gives the idle connection to the next waiting request, or keeps it for a later one."""
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """Removes a closed connection."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._grow()

    async def close(self) -> None:
        """Closes all connections; requests still in flight are reported as lost."""
        self.limit = 0
        self._waiting.clear()
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in self._open:
            connection.transport.abort()
        while self._open:
            await asyncio.sleep(0)

    def _grow(self) -> None:
        """Opens a connection if a request waits for one and the limit allows it."""
        opening = len(self._opening)
        if len(self._waiting) > opening and len(self._open) + opening < self.limit:
            self._opening.add(asyncio.ensure_future(self._connect_for_waiting()))

    async def _connect_for_waiting(self) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            await self._connect()
        except OSError as e:
            if self._waiting:
                index, _ = self._waiting.popleft()
                self.answered(index, Answer(NO_ANSWER, f"cannot connect: {e.strerror or e}"))
        finally:
            self._opening.discard(task)
        self._grow()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self), *self._address)
        self._open.add(connection)
        self.release(connection)
        return connection
