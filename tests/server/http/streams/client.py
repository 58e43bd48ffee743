"""A client that plays streams: pieces go out in their order, answers come back by connection.

It waits only for what the server owes it (an answer, 100 (Continue), the end of the connection), each for
`PATIENCE_S` at most: a server that is silent for so long has lost the request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from tests.server.http.streams.scripts import Piece, Script, Stream

PATIENCE_S = 15.0
NO_BODY = (204, 304)


@dataclass(frozen=True, slots=True)
class Answer:
    """One final answer. headers: names in lower case. body: without transfer coding."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    version: bytes = b"HTTP/1.1"

    def header(self, name: bytes) -> bytes | None:
        """The only one of that name; several are joined with commas."""
        found = [value for key, value in self.headers if key == name]
        return b", ".join(found) if found else None

    @property
    def closes(self) -> bool:
        """Whether it says that the connection ends."""
        return (self.header(b"connection") or b"").lower() == b"close"


@dataclass(slots=True)
class Heard:
    """The answers on one connection. continued: requests, by position, that got 100 (Continue).

    ended: by the server; reset: not by a plain end, and what was still to be read is lost. broken: why the
    bytes are no answers. silent: what was waited for in vain.
    """

    answers: list[Answer] = field(default_factory=list)
    continued: set[int] = field(default_factory=set)
    ended: bool = False
    reset: bool = False
    broken: str = ""
    silent: str = ""


class Connection(asyncio.Protocol):
    """Reads answers. methods: of the requests, in order: an answer to HEAD has no body."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        self.heard = Heard()
        self._methods = methods
        self._data = b""
        self._changed = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while not self.heard.broken and self._data and self._taken(False):
            pass
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._data and not self.heard.broken and not self._taken(True):
            self.heard.broken = f"the connection ended inside an answer: {self._data[:200]!r}"
        self.heard.ended = True
        self.heard.reset = exc is not None
        self._changed.set()

    async def until(self, there: Callable[[Heard], bool], what: str) -> bool:
        """Waits until it is there; false once the connection has ended, or nothing came for too long."""
        while not there(self.heard):
            if self.heard.ended or self.heard.silent or self.heard.broken:
                return False
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), PATIENCE_S)
            except TimeoutError:
                self.heard.silent = f"no {what} within {PATIENCE_S:g} s"
        return True

    def _taken(self, end: bool) -> bool:
        """Takes one answer from what has arrived; false if it is not all there."""
        top, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return False
        line, *lines = top.split(b"\r\n")
        version, _, after = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not after[:3].isdigit():
            self.heard.broken = f"not the head of an answer: {self._data[:200]!r}"
            return False
        pairs = [given.partition(b":") for given in lines]
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        answer = Answer(int(after[:3]), headers, b"", version)
        number = len(self.heard.answers)
        if answer.status < 200:
            self.heard.continued.add(number)
            self._data = rest
            return True
        body = self._body(answer, number, rest, end)
        if body is None:
            return False
        taken, length = body
        self._data = rest[length:]
        self.heard.answers.append(Answer(answer.status, headers, taken, version))
        return True

    def _body(self, answer: Answer, number: int, rest: bytes, end: bool) -> tuple[bytes, int] | None:
        """(body, bytes that it takes), None if it has yet to arrive."""
        method = self._methods[number] if number < len(self._methods) else "GET"
        if method == "HEAD" or answer.status in NO_BODY:
            return b"", 0
        if answer.header(b"transfer-encoding") is not None:
            return _unchunked(rest)
        length = answer.header(b"content-length")
        if length is None:
            return (rest, len(rest)) if end else None
        if not length.isdigit():
            self.heard.broken = f"content-length {length!r}"
            return None
        size = int(length)
        return (rest[:size], size) if len(rest) >= size else None


def _unchunked(rest: bytes) -> tuple[bytes, int] | None:
    body, at = b"", 0
    while True:
        end = rest.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(rest[at:end], 16)
        if len(rest) < end + 4 + size:
            return None
        body, at = body + rest[end + 2 : end + 2 + size], end + 4 + size
        if not size:
            return body, at


class Barrier:
    """A connection of its own: a server that has answered on it has read what was sent elsewhere before."""

    ASKED = b"GET /v2/health/live HTTP/1.1\r\nHost: barrier\r\n\r\n"

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._connection: Connection | None = None

    async def passed(self) -> None:
        """Returns when the server has gone once around its loop. Raises AssertionError if it is silent."""
        connection = self._connection
        if connection is None or connection.heard.ended:
            self._connection = connection = await connected(self._address, ())
        answered = len(connection.heard.answers)
        connection.transport.write(self.ASKED)
        heard = connection.heard
        there = await connection.until(lambda heard: len(heard.answers) > answered, "answer")
        assert there, f"the barrier's connection: {heard.silent or heard.broken or 'closed'}"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()


async def connected(address: tuple[str, int], methods: tuple[str, ...]) -> Connection:
    """A new connection for requests of these methods."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(methods), *address)
    return connection


async def play(address: tuple[str, int], stream: Stream, barrier: Barrier) -> list[Heard]:
    """Sends every piece in the stream's order, waits for the end of every connection."""
    connections = [
        await connected(address, tuple(ask.method for ask in script.asks)) for script in stream.scripts
    ]
    waiting = [iter(script.pieces) for script in stream.scripts]
    try:
        for turn in stream.order:
            piece = next(waiting[turn], None)
            if piece is not None and await _ready(connections[turn], piece):
                connections[turn].transport.write(piece.data)
                if piece.read:
                    await barrier.passed()
        for connection, script in zip(connections, stream.scripts, strict=True):
            await _finished(connection, script)
    finally:
        for connection in connections:
            connection.transport.abort()
    return [connection.heard for connection in connections]


async def _ready(connection: Connection, piece: Piece) -> bool:
    """Whether the piece can be sent, once what it waits for is there."""
    if piece.after:
        number = piece.after - 1

        def there(heard: Heard) -> bool:
            return len(heard.answers) >= piece.after or (piece.go_ahead and number in heard.continued)

        if not await connection.until(there, f"answer {piece.after}"):
            return False
    closed = any(answer.closes for answer in connection.heard.answers)
    return not (closed or connection.transport.is_closing())


async def _finished(connection: Connection, script: Script) -> None:
    """Waits until the server closes, or closes in the middle where the client goes away."""
    if script.aborts:
        connection.transport.abort()
    else:
        await connection.until(lambda heard: heard.ended, "end of the connection")
