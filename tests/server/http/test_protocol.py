"""What arrives on the wire and is not what a client library would send; a real server and bare sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from server.engine import Engine
from server.http.app import create_app
from server.http.protocol import MAX_HEADER_BYTES, Protocol, WholeAnswers
from server.running import Child, start

BODY = b'{"instances": [{}]}'


def exchange(server: Child, *pieces: bytes) -> bytes:
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
    lines = [b"POST %s HTTP/1.1" % path.encode(), b"Host: x", b"Content-Length: %d" % length, *more]
    return b"\r\n".join([*lines, b"", b""])


def status_and_body(answer: bytes) -> tuple[int, Any]:
    top, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in top
    return int(top.split()[1]), json.loads(body)


def test_what_is_not_http_gets_400_in_json(server: Child) -> None:
    for nonsense in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n"):
        status, body = status_and_body(exchange(server, nonsense))
        assert status == 400
        assert body == {"error": "the request is not valid HTTP/1.1"}


@pytest.mark.parametrize(
    "good", [b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", head("/v1/predict", len(BODY)) + BODY]
)
@pytest.mark.parametrize("times", [1, 3])
def test_what_follows_a_request_and_is_not_http_leaves_no_trace_in_the_log(
    bundle_dir: Path, tmp_path: Path, good: bytes, times: int
) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr, start({"bundle": bundle_dir, "drain_grace_s": 0}, stderr) as server:
        for _ in range(20):
            answers = exchange(server, good * times + b"\0\r\n\r\n")
            assert answers.startswith(b"HTTP/1.1 ")
            assert b"not valid HTTP/1.1" in answers
        exchange(
            server, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n"
        )
        assert httpx.post(f"{server.url}/v1/predict", content=BODY).status_code == 200
    assert log.read_text() == ""


def test_headers_without_end_are_refused(server: Child) -> None:
    endless = b"GET /livez HTTP/1.1\r\n" + b"x-junk: y\r\n" * (MAX_HEADER_BYTES // 11 + 100)
    status, body = status_and_body(exchange(server, endless))
    assert status == 431
    assert "headers exceed" in body["error"]


def test_one_header_line_without_end_is_refused(server: Child) -> None:
    try:
        answer = exchange(server, b"GET /livez HTTP/1.1\r\nx: ", b"y" * (MAX_HEADER_BYTES + 100_000))
    except ConnectionError:  # what it had not read yet makes the server's close a reset
        answer = b""
    assert not answer or status_and_body(answer)[0] == 431
    assert httpx.get(f"{server.url}/livez").status_code == 200


def test_a_body_in_pieces_and_in_chunks_is_read(server: Child) -> None:
    whole = head("/v1/predict", len(BODY), b"Connection: close")
    assert status_and_body(exchange(server, whole, BODY[:5], BODY[5:]))[0] == 200
    chunked = (
        b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert status_and_body(exchange(server, chunked, b"13\r\n" + BODY + b"\r\n", b"0\r\n\r\n"))[0] == 200


def test_pipelined_requests_are_answered_in_order(server: Child) -> None:
    first = head("/v1/predict", len(BODY)) + BODY
    last = head("/v1/rank", 2, b"Connection: close") + b"{}"
    answer = exchange(server, first + first + last)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b"HTTP/1.1 422") > answer.rindex(b"HTTP/1.1 200")


def test_a_chunked_body_beyond_the_limit_is_refused_while_it_arrives(server: Child) -> None:
    chunked = (
        b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    piece = b"%x\r\n" % 2**20 + b" " * 2**20 + b"\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(chunked)
        try:
            for _ in range(18):
                connection.sendall(piece)
        except OSError:
            pass  # refused and closed before we had sent it all
        try:
            answer = connection.recv(65536)
        except OSError:
            answer = b""
    assert not answer or status_and_body(answer)[0] == 413


def test_a_client_that_asks_before_it_sends_is_told_before_it_has_sent(server: Child) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head("/v1/predict", 50_000_000, b"Expect: 100-continue"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head("/v1/predict", len(BODY), b"Expect: 100-continue"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_client_of_50_megabytes_can_send_them_all_and_read_why_not(server: Child) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.post("/v1/predict", content=b" " * 50_000_000)
        assert answer.status_code == 413
        assert answer.json()["error"] == "the body has 50000000 bytes; the limit is 1048576"
        assert client.post("/v1/predict", content=BODY).status_code == 200


def test_clients_that_leave_in_the_middle_leave_no_trace(server: Child) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    request = head("/v1/predict", len(BODY)) + BODY
    for cut in (1, 30, len(request) - 3, len(request)):
        for _ in range(20):
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(request[:cut])
    with httpx.Client(base_url=server.url) as client:
        assert client.post("/v1/predict", content=BODY).status_code == 200
        metrics = client.get("/metrics").text
    assert "polyrec_queue_rows 0.0" in metrics
    assert 'outcome="error",path' not in metrics


def test_connections_that_nobody_uses_are_closed(engine: Engine) -> None:
    request = head("/v1/predict", len(BODY)) + BODY

    async def run() -> None:
        state = ServerState()
        config = uvicorn.Config(create_app(engine), proxy_headers=False, log_config=None)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())

        async def answer() -> bytes:
            top = await reader.readuntil(b"\r\n\r\n")
            length = int(top.partition(b"content-length: ")[2].partition(b"\r")[0])
            return top + await reader.readexactly(length)

        def closed_if_idle_for(seconds: float) -> bool:
            (mine,) = state.connections
            assert isinstance(mine, Protocol)
            mine.close_if_idle(seconds)
            return mine.transport.is_closing()

        writer.write(request[:20])
        while not any(isinstance(c, Protocol) and c._header_bytes for c in state.connections):
            await asyncio.sleep(0)
        assert not closed_if_idle_for(0.0)  # a request is on its way
        writer.write(request[20:])
        assert (await answer()).startswith(b"HTTP/1.1 200")
        assert not closed_if_idle_for(3600.0)
        assert closed_if_idle_for(0.0)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_answers_head_and_body_leave_together(server: Child, method: str) -> None:
    answer = exchange(server, f"{method} /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 200")
    assert bool(body) == (method == "GET")


class Written:
    """A transport that remembers."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_a_head_waits_for_its_body_and_nothing_else_does() -> None:
    transport = Written()
    whole = WholeAnswers(transport)  # type: ignore[arg-type]
    whole.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    whole.write(b"HTTP/1.1 200 OK\r\n\r\n")
    whole.write(b"{}")
    whole.write(b"more")
    whole.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    whole.close()
    whole.write(b"nobody reads this any more")
    assert transport.writes == [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"more",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ]
    assert transport.closed
