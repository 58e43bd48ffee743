from __future__ import annotations

import asyncio

import pytest

from polyrec.loadtest.drivers.closed_loop import closed_loop, keep_busy
from polyrec.loadtest.drivers.connection import LoadError, Target
from tests.loadtest.serving import OK, Server, serving

REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


def against(answer: bytes, connections: int) -> tuple[int, Server]:
    async def both() -> tuple[int, Server]:
        async with serving(lambda _: answer) as server:
            loop = asyncio.get_running_loop()
            asked = loop.run_in_executor(None, closed_loop, server.url(), [REQUEST], connections, 0.05)
            return await asked, server

    return asyncio.run(both())


def test_connections_send_again_when_they_are_answered_and_all_answers_count() -> None:
    answered, server = against(OK, 3)
    assert server.max_open == 3
    assert answered == len(server.bodies) > 3


def test_each_answer_has_a_latency_and_its_own_body() -> None:
    async def run() -> None:
        async with serving(lambda n: b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % (n % 10)) as server:
            target, bodies = Target(server.url()), dict[int, bytes]()
            requests = [target.request(b"%d" % n) for n in range(5)]
            loop = await keep_busy(target, requests, 1, 0.02, bodies=bodies)
            assert server.bodies[:6] == [b"0", b"1", b"2", b"3", b"4", b"0"]
            assert bodies == {n: b"%d" % (n % 10) for n in range(len(server.bodies))}
            assert loop.latency_s.size == len(bodies)
            assert 0 < loop.latency_s.sum() <= loop.seconds

    asyncio.run(run())


def test_an_error_answer_ends_the_loop() -> None:
    with pytest.raises(LoadError, match="/ did not answer while it was measured: status 503 b'busy'"):
        against(b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", 2)
