"""A call's time is that of all its steps, however slowly a server reads or answers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import polyrec
from polyrec.client.answers import Prediction
from polyrec.client.rows import Rows

BODY = json.dumps(
    {"predictions": [0.5], "path": "table@cpu", "quality": 0.1, "degraded": False, "reason": None}
).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)
PAUSE_S, READ_BYTES = 0.02, 2**16
SMALL, LARGE = [{"item": "a"}], [{"item": "a" * 2000}] * 4000
"""Requests; the large one does not fit the buffers of a connection."""


def received(connection: socket.socket, size: int) -> bytes:
    content = connection.recv(size)
    if not content:
        raise ConnectionError("the client gave up")
    return content


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Reads requests, 64 KiB at a time with pauses, and answers each; yields its URL."""

    def serve() -> None:
        with suppress(OSError):  # the client gave up, or the test ended
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    read(connection)
                    answer(connection)

    def read(connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += received(connection, 1)
        length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
        while length:
            length -= len(received(connection, min(READ_BYTES, length)))
            time.sleep(PAUSE_S)

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def at_once(connection: socket.socket) -> None:
    connection.sendall(HEAD + BODY)


def dribbled_head(connection: socket.socket) -> None:
    dribble(connection, HEAD)
    connection.sendall(BODY)


def dribbled_body(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    dribble(connection, BODY)


def dribble(connection: socket.socket, content: bytes) -> None:
    for byte in content:
        connection.sendall(bytes([byte]))
        time.sleep(PAUSE_S)


def blocking(url: str, rows: Rows, budget_ms: float) -> Prediction:
    with polyrec.Client(url, budget_ms=budget_ms) as client:
        return client.predict(rows)


def in_coroutine(url: str, rows: Rows, budget_ms: float) -> Prediction:
    async def ask() -> Prediction:
        async with polyrec.AsyncClient(url, budget_ms=budget_ms) as client:
            return await client.predict(rows)

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [blocking, in_coroutine])
@pytest.mark.parametrize(
    ("rows", "answer"), [(SMALL, dribbled_head), (SMALL, dribbled_body), (LARGE, at_once)]
)
def test_a_server_that_is_slow_in_every_part_is_given_up(
    ask: Callable[[str, Rows, float], Prediction], rows: Rows, answer: Callable[[socket.socket], None]
) -> None:
    with server(answer) as url:
        with pytest.raises(polyrec.DeadlineExceeded):
            ask(url, rows, 300)
        assert ask(url, rows, 60_000).probabilities == [0.5]  # with more time it answers
