"""One connection's states; requests as no client library would send them, on bare sockets."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
from pathlib import Path

import httpx
import pytest

from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.child import ServerProcess
from polyrec.server.http.connection.head import MAX_HEAD_BYTES, MAX_URL_BYTES
from polyrec.server.http.connection.limits import ConnectionLimits
from tests.forking import start
from tests.server.http.connection.wire import connected, exchange, head, local, status_and_body

BODY = b'{"instances": [{}]}'


def test_bytes_that_are_not_http_get_400_in_json(server: ServerProcess) -> None:
    for nonsense in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n"):
        status, body = status_and_body(exchange(server, nonsense))
        assert status == 400
        assert body == {"error": "the request is not valid HTTP/1.1"}


def test_garbage_after_a_request_cannot_fill_the_log(bundle_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr, start({"bundle": bundle_dir, "drain_grace_s": 0}, stderr) as server:
        for good in (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", head("/v1/predict", len(BODY)) + BODY):
            for times in (1, 3) * 10:
                answers = exchange(server, good * times + b"\0\r\n\r\n")
                assert answers.count(b"HTTP/1.1 200") == times
                assert b"not valid HTTP/1.1" in answers
        exchange(
            server, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n"
        )
        assert httpx.post(f"{server.url}/v1/predict", content=BODY).status_code == 200
    lines = [line for line in log.read_text().splitlines() if " polyrec.server: " not in line]
    assert all(" WARNING polyrec.http: HTTP limit malformed: " in line for line in lines)
    assert all(re.search(r" request_id=[0-9a-f]+-[0-9a-f]+$", line) for line in lines)
    assert len(lines) < 20  # one a second, for 40 offenses


def test_headers_without_end_are_rejected(server: ServerProcess) -> None:
    endless = b"GET /livez HTTP/1.1\r\n" + b"x-junk: y\r\n" * (MAX_HEAD_BYTES // 11 + 100)
    status, body = status_and_body(exchange(server, endless))
    assert status == 431
    assert body["error"] == f"the request's head has more than {MAX_HEAD_BYTES} bytes"


def test_one_header_line_without_end_is_rejected(server: ServerProcess) -> None:
    answer = exchange(server, b"GET /livez HTTP/1.1\r\nx: ", b"y" * (MAX_HEAD_BYTES + 100_000))
    assert status_and_body(answer)[0] == 431
    assert httpx.get(f"{server.url}/livez").status_code == 200


def test_a_body_in_pieces_and_in_chunks_is_read(server: ServerProcess) -> None:
    whole = head("/v1/predict", len(BODY), b"Connection: close")
    assert status_and_body(exchange(server, whole, BODY[:5], BODY[5:]))[0] == 200
    chunked = (
        b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert status_and_body(exchange(server, chunked, b"13\r\n" + BODY + b"\r\n", b"0\r\n\r\n"))[0] == 200


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    first = head("/v1/predict", len(BODY)) + BODY
    last = head("/v1/rank", 2, b"Connection: close") + b"{}"
    answer = exchange(server, first + first + last)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b"HTTP/1.1 422") > answer.rindex(b"HTTP/1.1 200")


def test_a_chunked_body_beyond_the_limit_is_rejected_while_it_arrives(server: ServerProcess) -> None:
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


def test_a_client_that_expects_100_continue_is_answered_before_it_sends(server: ServerProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head("/v1/predict", 50_000_000, b"Expect: 100-continue"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head("/v1/predict", len(BODY), b"Expect: 100-continue"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_client_of_50_megabytes_can_send_them_all_and_read_why_not(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.post("/v1/predict", content=b" " * 50_000_000)
        assert answer.status_code == 413
        assert answer.json()["error"] == "the body has 50000000 bytes; the limit is 1048576"
        assert client.post("/v1/predict", content=BODY).status_code == 200


def test_clients_that_leave_in_the_middle_leave_no_trace(server: ServerProcess) -> None:
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


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_answers_head_and_body_leave_together(server: ServerProcess, method: str) -> None:
    answer = exchange(server, f"{method} /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 200")
    assert bool(body) == (method == "GET")


def test_a_head_beyond_its_limit_is_rejected_also_in_one_write(server: ServerProcess) -> None:
    """FINDINGS 1, low: heads of 70 kB passed the limit of 64 KiB in one write."""
    whole = b"GET /livez HTTP/1.1\r\nHost: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"
    assert status_and_body(exchange(server, whole))[0] == 431


def test_a_url_beyond_its_limit_is_rejected(server: ServerProcess) -> None:
    url = b"/" + b"y" * MAX_URL_BYTES
    for cut in (len(url), MAX_URL_BYTES // 2):
        whole = b"GET " + url + b" HTTP/1.1\r\nHost: x\r\n\r\n"
        assert status_and_body(exchange(server, whole[:cut], whole[cut:]))[0] == 414


def test_a_request_without_body_may_announce_one_and_the_next_is_read_behind_it(
    server: ServerProcess,
) -> None:
    """FINDINGS 1, high 7: GET with an unread body."""
    get = b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    last = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = exchange(server, get, b"1", b"2345" + last)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b'{"ready":true}' in answer


def test_pipelined_requests_give_others_their_turn(engine: Engine) -> None:
    """One read may bring thousands of requests."""
    many = (head("/v1/predict", 0)) * 3000

    async def run() -> None:
        async with local(engine, ConnectionLimits()) as server:
            reader, writer = await server.open()
            other, other_writer = await server.open()
            writer.write(many)
            other_writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            await other.readuntil(b"}")
            assert server.frontend.buffered  # the rest waits
            left = 3000
            while left:
                left -= (await reader.read(2**16)).count(b"HTTP/1.1 400")
            writer.close()
            other_writer.close()

    asyncio.run(run())


def test_a_client_that_pipelines_faster_than_it_is_answered_is_read_slower(engine: Engine) -> None:
    """Its requests are rejected at once, so that nothing else would ever stop reading."""
    request = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\n\r\n"

    async def run() -> None:
        async with local(engine, ConnectionLimits()) as server:
            reader, writer = await server.open()
            other, other_writer = await server.open()
            for _ in range(10):
                writer.write(request * 5000)
            for _ in range(50):
                other_writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                await other.readuntil(b"}")
                assert server.frontend.buffered <= 2**20
            assert (await reader.read(2**16)).startswith(b"HTTP/1.1 400")
            for closing in (writer, other_writer):
                closing.close()

    asyncio.run(run())


def test_a_plan_loaded_while_the_body_arrives_answers_it(plan: Plan) -> None:
    """The one before is closed once nobody waits for it, and a body that is still to come does not count."""

    async def run() -> bytes:
        engine = Engine()
        engine.load(plan)
        connection, transport = connected(engine)
        connection.data_received(head("/v1/predict", 19) + BODY[:12])
        old = engine.serving
        engine.load(plan)
        while not old.dispatcher._closed:
            await asyncio.sleep(0.001)
        connection.data_received(BODY[12:])
        while not transport.sent:
            await asyncio.sleep(0.001)
        engine.close()
        return transport.sent

    assert asyncio.run(run()).startswith(b"HTTP/1.1 200 ")


def test_requests_waiting_when_the_server_ends_get_503(plan: Plan) -> None:
    async def run() -> bytes:
        engine = Engine()
        engine.load(plan)
        connection, transport = connected(engine)
        connection.data_received(head("/v1/predict", 19) + BODY)
        engine.close()
        while not transport.closed:
            await asyncio.sleep(0.001)
        return transport.sent

    sent = asyncio.run(run())
    assert sent.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close\r\n" in sent


def test_nothing_is_written_to_a_client_that_left(plan: Plan) -> None:
    async def run() -> tuple[bytes, Engine]:
        engine = Engine()
        engine.load(plan)
        connection, transport = connected(engine)
        connection.data_received(head("/v1/predict", 19) + BODY)
        connection.connection_lost(None)
        while engine.serving.dispatcher.waiting:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        return transport.sent, engine

    sent, engine = asyncio.run(run())
    assert sent == b""
    lines = engine.metrics.render().decode().splitlines()
    assert 'polyrec_requests_total{endpoint="predict",outcome="cancelled"} 1' in lines
    engine.close()


@pytest.mark.parametrize(
    ("page", "body"), [("/v1/predict", BODY), ("/v1/rank", b'{"candidates": [{}]}')], ids=["predict", "rank"]
)
def test_answered_requests_leave_nothing_for_the_garbage_collector(
    plan: Plan, page: str, body: bytes
) -> None:
    """Its second generation took 5 ms of the loop, ten times a second, for cycles through the listener."""

    asks = (b"60000", 200), (b"0.001", 504), (b"never", 400)

    async def run() -> list[int]:
        """Returns the least that three rounds leave: threads of other tests may leave something in one."""
        engine = Engine()
        engine.load(plan)
        left = []
        connection, transport = connected(engine)
        for budget_ms, status in asks * 4:
            for _ in range(20):
                transport.sent = b""
                connection.data_received(head(page, len(body), b"X-Latency-Budget-Ms: " + budget_ms) + body)
                while not transport.sent:
                    await asyncio.sleep(0)
                assert transport.sent.startswith(b"HTTP/1.1 %d " % status)
            left.append(gc.collect())
        engine.close()
        # in the first round much is made that stays
        return [min(left[i :: len(asks)][1:]) for i in range(len(asks))]

    gc.collect()
    gc.freeze()  # or each collection scans what all tests before have made
    gc.disable()
    try:
        assert asyncio.run(run()) == [0, 0, 0]
    finally:
        gc.enable()
