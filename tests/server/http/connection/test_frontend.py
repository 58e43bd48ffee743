"""Tests the state that connections share: arrival times of requests, and turns of large and late ones."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from functools import partial

import pytest
from uvicorn.server import ServerState

from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from polyrec.server.http.app import create_app
from polyrec.server.http.connection.connection import Connection
from polyrec.server.http.connection.frontend import HttpFrontend
from polyrec.server.http.connection.hot_request import LARGE_BODY_BYTES
from tests.server.http.connection.wire import Transport, head

BUSY_S = 0.02
SMALL = b'{"instances": [{}]}'
LARGE = SMALL + b" " * LARGE_BODY_BYTES
BUDGET = b"X-Latency-Budget-Ms: 60000"


def front_of(engine: Engine) -> HttpFrontend:
    app = create_app(engine)
    return HttpFrontend(app, app.hot, engine)


async def read(frontend: HttpFrontend) -> float:
    """A round of reading, to its end."""
    arrived_s = frontend.arrival().earliest_s
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return arrived_s


def test_requests_read_after_a_batch_may_have_arrived_before_it(engine: Engine) -> None:
    async def scenario() -> tuple[float, float]:
        frontend = front_of(engine)
        looked_s = clock()
        await read(frontend)
        while clock() < looked_s + BUSY_S:
            pass
        return looked_s, frontend.arrival().earliest_s

    looked_s, arrived_s = asyncio.run(scenario())
    assert looked_s <= arrived_s < looked_s + BUSY_S


def test_request_that_wakes_the_loop_has_just_arrived(engine: Engine) -> None:
    async def scenario() -> tuple[float, float]:
        frontend = front_of(engine)
        await read(frontend)
        await asyncio.sleep(BUSY_S)
        return clock(), frontend.arrival().earliest_s

    woken_s, arrived_s = asyncio.run(scenario())
    assert arrived_s >= woken_s


def test_all_that_one_round_reads_arrived_at_the_same_time(engine: Engine) -> None:
    async def scenario() -> tuple[float, float]:
        frontend = front_of(engine)
        return frontend.arrival().earliest_s, frontend.arrival().earliest_s

    first_s, second_s = asyncio.run(scenario())
    assert first_s == second_s


def test_a_client_that_waited_for_an_answer_sent_its_next_request_after_it(engine: Engine) -> None:
    async def scenario() -> tuple[float, float, float]:
        frontend = front_of(engine)
        arrived_s = frontend.arrival().earliest_s
        return (
            arrived_s,
            frontend.arrival(arrived_s - 1).earliest_s,
            frontend.arrival(arrived_s + 1).earliest_s,
        )

    arrived_s, before_s, after_s = asyncio.run(scenario())
    assert before_s == arrived_s
    assert after_s == arrived_s + 1


def test_requests_read_after_a_batch_arrived_in_reading_order(engine: Engine) -> None:
    async def scenario() -> list[float]:
        frontend = front_of(engine)
        likely = []
        for _ in range(2):
            looked_s = clock()
            likely.clear()
            for _ in range(8):
                frontend.begin_request()
                likely.append(frontend.arrival().likely_s)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            while clock() < looked_s + BUSY_S:
                pass
        return likely

    likely = asyncio.run(scenario())
    assert likely == sorted(set(likely))


def test_networks_take_turns_and_the_loop_runs_between_them(engine: Engine) -> None:
    """Or a client with thousands of connections would delay health checks by seconds."""

    async def scenario() -> list[str]:
        frontend, done = front_of(engine), list[str]()
        for i, network in enumerate(("a", "a", "a", "b")):
            frontend.in_turn(network, partial(done.append, f"{network}{i}"), 10)
        assert frontend.buffered == 40
        while frontend.buffered:
            await asyncio.sleep(0)
            done.append("-")
        return done

    assert asyncio.run(scenario()) == ["a0", "-", "b3", "-", "a1", "-", "a2", "-"]


def request(body: bytes, *headers: bytes) -> bytes:
    return head("/v1/predict", len(body), BUDGET, *headers) + body


def chunked(body: bytes) -> bytes:
    lines = b"POST /v1/predict HTTP/1.1", b"Host: x", BUDGET, b"Transfer-Encoding: chunked", b"", b""
    return b"\r\n".join(lines) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


class Clients:
    """Connections to one engine. To be made on a loop."""

    def __init__(self, plan: Plan) -> None:
        self.engine = Engine()
        self.engine.load(plan)
        app = create_app(self.engine)
        self.front, self._state = HttpFrontend(app, app.hot, self.engine), ServerState()

    def connect(self) -> tuple[Connection, Transport]:
        connection, transport = Connection(self.front, self._state), Transport()
        connection.connection_made(transport)
        return connection, transport

    @property
    def queued(self) -> int:
        """Number of parsed requests without an answer."""
        return self.engine.serving.dispatcher.waiting


async def until(happened: Callable[[], object]) -> None:
    while not happened():
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "large",
    [request(LARGE), chunked(LARGE), request(gzip.compress(SMALL), b"Content-Encoding: gzip")],
    ids=["large", "chunked", "compressed"],
)
def test_a_small_request_is_parsed_before_large_ones_that_came_earlier(plan: Plan, large: bytes) -> None:
    """The large ones of all connections would hold up the event loop together."""

    async def scenario() -> list[bytes]:
        clients = Clients(plan)
        made = [clients.connect() for _ in range(3)]
        for connection, _ in made[:2]:
            connection.data_received(large)
        assert clients.queued == 0
        assert clients.front.buffered >= 2 * len(gzip.compress(SMALL))  # bodies that wait are memory
        made[2][0].data_received(request(SMALL))
        assert clients.queued == 1
        await until(lambda: all(transport.sent for _, transport in made))
        assert clients.front.buffered == 0
        clients.engine.close()
        return [transport.sent for _, transport in made]

    for sent in asyncio.run(scenario()):
        assert sent.startswith(b"HTTP/1.1 200 ")


def test_a_small_request_is_parsed_before_pages_are_made(plan: Plan) -> None:
    """A page of metrics takes milliseconds, and 16 connections asked for it all the time."""

    async def scenario() -> None:
        clients = Clients(plan)
        pages = [clients.connect() for _ in range(16)]
        for connection, _ in pages:
            connection.data_received(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        connection, transport = clients.connect()
        connection.data_received(request(SMALL))
        await until(lambda: transport.sent)
        assert sum(bool(page.sent) for _, page in pages) < len(pages) / 2
        await until(lambda: all(page.sent for _, page in pages))
        clients.engine.close()

    asyncio.run(scenario())


def test_a_large_body_whose_client_left_before_its_turn_is_not_parsed(plan: Plan) -> None:
    async def scenario() -> str:
        clients = Clients(plan)
        (first, answer), (left, nothing) = clients.connect(), clients.connect()
        first.data_received(request(LARGE))
        left.data_received(request(LARGE.replace(b"{}", b'{"unknown": 1}')))
        left.connection_lost(None)
        await until(lambda: answer.sent)
        assert not nothing.sent
        text = clients.engine.metrics.render().decode()
        clients.engine.close()
        return text

    text = asyncio.run(scenario())
    assert 'polyrec_requests_total{endpoint="predict",outcome="cancelled"} 1\n' in text
    assert 'polyrec_requests_total{endpoint="predict",outcome="invalid"} 0\n' in text


@pytest.mark.parametrize("late", [True, False], ids=["late", "chunked"])
def test_past_capacity_a_body_that_comes_after_its_head_is_rejected_unparsed(plan: Plan, late: bool) -> None:
    """Most HTTP clients send the body in a packet of its own."""
    rows = 1024
    body = b'{"instances": [%s]}' % b",".join([b"{}"] * rows)
    invalid = body.replace(b"{}", b'{"unknown": 1}', 1)

    async def scenario() -> bytes:
        clients = Clients(plan)
        for _ in range(plan.limits.max_queued_rows // rows + 1):
            connection, _ = clients.connect()
            connection.data_received(request(body))
        connection, transport = clients.connect()
        whole = request(invalid) if late else chunked(invalid)
        at = whole.index(b"\r\n\r\n") + 4
        connection.data_received(whole[:at])
        connection.data_received(whole[at:])
        sent = transport.sent
        clients.engine.close()
        return sent

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 429 ")
