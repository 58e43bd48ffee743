"""uvicorn's HTTP/1.1 protocol with the limits that a public promise needs.

uvicorn bounds neither a request's headers nor what a client goes on sending after it was refused, and
it answers what is not HTTP in plain text. Here headers are bounded in size (431) and in time (408),
refused bodies are read and dropped up to a bound, so that the client finishes sending and reads its
answer, every error is JSON, and who waits for an answer that nobody will read is told so. It also writes
head and body of an answer apart, a system call each; here they leave together. Plain requests to hot
endpoints do not become tasks of its ASGI application: `server/http/direct.py`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.engine import State
from server.errors import Malformed, error_body
from server.http.app import Application
from server.http.direct import Direct
from server.http.heads import Head, Heads, split
from server.http.inference import ARRIVED, GONE
from server.http.options import parse_options
from server.http.rounds import clock, rounds_of

MAX_HEADER_BYTES = 64 * 2**10
MAX_DROPPED_BYTES = 256 * 2**20
HEADERS_WITHIN_S = 10.0


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class WholeAnswers:
    """A transport that keeps an answer's head until its body, which uvicorn always writes next."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # a later request on it was refused; uvloop raises
        if self._head:
            self._transport.write(self._head + data)
            self._head = b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n") and data != CONTINUE:
            self._head = data
        else:
            self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _nowhere(data: bytes) -> None:
    """Where a connection that is not made yet would write."""


async def close_idle(state: ServerState, after_s: float) -> None:
    """For ever: closes connections that nobody has used for so long. Two timers a request would cost 5 us."""
    while True:
        await asyncio.sleep(after_s / 10)
        for connection in tuple(state.connections):
            if isinstance(connection, Protocol):
                connection.close_if_idle(after_s)


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._header_bytes = 0
        self._in_headers = True
        self._dropped_bytes = 0
        self._late: asyncio.TimerHandle | None = None
        self._rounds = rounds_of(self.loop)
        self._arrived_s = 0.0
        self._tcp: socket.socket | None = None
        known = self.app if isinstance(self.app, Application) else None
        self._hot = {} if known is None else known.hot
        self._heads = None if known is None else known.heads
        self._engine = None if known is None else known.engine
        self._key = b""
        self._direct: Direct | None = None
        self._idle_s = 0.0
        self.send: Callable[[bytes], None] = _nowhere

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        bare = cast(asyncio.Transport, transport)
        self.send = bare.write
        connection = bare.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # uvloop makes a socket for each question that its own is asked
            self._tcp = socket.socket(connection.family, connection.type, 0, connection.fileno())
        self._idle_s = clock()
        super().connection_made(cast(asyncio.Transport, WholeAnswers(bare)))

    def data_received(self, data: bytes) -> None:
        self._idle_s = 0.0
        self._arrived_s = self._rounds.arrived_s(self._tcp)
        if self._heads is not None and self._rests() and self._knows(self._heads, data):
            return
        # Counted by what arrives, not by the parser's callbacks: those come only with a complete line.
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the request's headers exceed {MAX_HEADER_BYTES} bytes")
        elif self._in_headers and self._header_bytes and self._late is None:
            self._late = self.loop.call_later(HEADERS_WITHIN_S, self._too_slow)
        elif self._direct is not None and not self._direct.whole:
            self._direct.wait(self.loop)

    def _rests(self) -> bool:
        """Whether the next byte begins a request, and none before it waits for anything."""
        cycle = self.cycle
        return (
            self._in_headers
            and not self._header_bytes
            and (cycle is None or cycle.response_complete)
            and self.timeout_keep_alive_task is None
            and not self.flow.write_paused
        )

    def _drains(self) -> bool:
        """Whether the server is about to end: who is answered should come back elsewhere."""
        return self._engine is not None and self._engine.state is State.DRAINING

    def _knows(self, heads: Heads, data: bytes) -> bool:
        """Begins the answer to a whole request whose head was parsed before; false if this is none."""
        self._key = b""
        found = split(data)
        if found is None:
            return False
        key, begins, length = found
        head = heads.get(key)
        if head is None:
            self._key = key
            return False
        if len(data) - begins != length:
            return False
        gate, options, arrived_s = head.endpoint.gate, head.options, self._arrived_s
        judged = head.plain and gate.judges
        keep_alive = head.keep_alive and not self._drains()
        if judged:
            first = self.server_state.default_headers
            refused = gate.refused(options.budget_s, length, arrived_s, first, keep_alive)
            if refused is not None:
                self.send(refused)
                self._turned_over(keep_alive)
                return True
        scope = head.scope.copy()
        scope["client"], scope["server"] = self.client, self.server
        self._direct = direct = Direct(self, head.endpoint.call(scope, options, judged), keep_alive)
        self.cycle = cast(RequestResponseCycle, direct)
        direct.at_once(data[begins:], head.encoding, arrived_s)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._tcp is not None:
            self._tcp.detach()  # not ours to close
            self._tcp = None
        self._in_time()
        direct, cycle = self._direct, self.cycle
        gone: Callable[[], None] | None = None
        if direct is not None:
            direct.disconnected = True
            gone = direct.gone
        elif cycle is not None and not cycle.response_complete:
            gone = cast(Callable[[], None] | None, cycle.scope.get(GONE))
        super().connection_lost(exc)
        if gone is not None:
            gone()

    def ended(self, direct: Direct) -> None:
        """Of a direct answer: it is written."""
        self._direct = None
        if direct.whole:
            self.cycle = None  # type: ignore[assignment]
        self._turned_over(direct.keep_alive)

    def _turned_over(self, keep_alive: bool) -> None:
        """The next request's turn."""
        if keep_alive and not self.pipeline:
            self.server_state.total_requests += 1
            self._idle_s = clock()
        else:
            if not keep_alive:
                self.transport.close()
            self.on_response_complete()

    def close_if_idle(self, after_s: float) -> None:
        """If nothing came for so long since it was made, or answered directly; else uvicorn has a timer."""
        if self._idle_s and clock() - self._idle_s >= after_s:
            self.transport.close()

    def _too_slow(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            self._refuse(408, f"the request's headers did not arrive within {HEADERS_WITHIN_S:g} s")

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._in_time()
        hot = self._hot.get(self.url)
        if hot is None or not self._is_plain():
            super().on_headers_complete()
            if self._drains():
                self.cycle.keep_alive = False
            return
        scope = cast(dict[str, Any], self.scope)
        scope["method"], scope["path"] = "POST", self.url.decode()
        keep_alive = self.parser.should_keep_alive()
        self._direct = direct = Direct(self, hot.call(scope), keep_alive and not self._drains())
        self.cycle = cast(RequestResponseCycle, direct)
        direct.begin()
        if self._key and self._heads is not None and not direct.response_complete:
            with suppress(Malformed):  # it is told so once it is read
                options, encoding = parse_options(scope["headers"]), direct.encoding
                plain = hot.can_turn_away(options, encoding)
                self._heads.learn(self._key, Head(hot, scope, encoding, keep_alive, options, plain))

    def _is_plain(self) -> bool:
        """Whether a request to a hot endpoint can be answered directly."""
        return (
            self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
        )

    def on_body(self, body: bytes) -> None:
        direct = self._direct
        if self.cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > MAX_DROPPED_BYTES:
                self.transport.close()
        elif direct is not None and not direct.whole:
            direct.body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        direct, cycle = self._direct, self.cycle
        if direct is not None and not direct.whole:
            direct.complete(self._arrived_s)
        elif cycle is not None and not cycle.response_complete:
            cast(dict[str, Any], cycle.scope)[ARRIVED] = self._arrived_s
            super().on_message_complete()
        self._header_bytes = 0
        self._in_headers = True

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "the request is not valid HTTP/1.1")

    def _refuse(self, status: int, message: str) -> None:
        """Only where no application has the request yet."""
        if self._direct is not None:
            self._direct.disconnected = True  # nothing can be written after this
        body = error_body(message)
        self.transport.write(
            b"%scontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (STATUS_LINE[status], len(body), body)
        )
        self.transport.close()
