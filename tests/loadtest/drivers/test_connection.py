from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field

import pytest

from polyrec.loadtest.drivers.connection import NO_ANSWER, Answer, LoadError, Pool, Target
from tests.loadtest.serving import OK, Server, serving


@dataclass
class Answers:
    """Collects what a pool reports, and tells when all of it has come."""

    expected: int
    seen: dict[int, tuple[int, str]] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, index: int, answer: Answer) -> None:
        assert index not in self.seen, "an answer was reported twice"
        self.seen[index] = (answer.status, answer.error)
        if len(self.seen) == self.expected:
            self.complete.set()


async def send_all(
    server: Server, requests: int, *, opened: int = 1, limit: int = 64
) -> tuple[Answers, Pool]:
    target = Target(server.url())
    answers = Answers(requests)
    pool = Pool(target, limit, answers)
    try:
        await pool.open(opened)
        for i in range(requests):
            pool.send(i, target.request(b"%d" % i))
        await asyncio.wait_for(answers.complete.wait(), 30)
    finally:
        await pool.close()
    return answers, pool


def test_requests_one_after_another_share_one_connection() -> None:
    async def scenario() -> None:
        async with serving(lambda i: OK) as server:
            target = Target(server.url())
            done: asyncio.Queue[int] = asyncio.Queue()
            pool = Pool(target, 8, lambda index, answer: done.put_nowait(answer.status))
            await pool.open(1)
            for i in range(20):
                pool.send(i, target.request(b"x"))
                assert await done.get() == 200
            await pool.close()
            assert server.connections == 1

    asyncio.run(scenario())


def test_overlapping_requests_open_connections_up_to_the_limit() -> None:
    async def scenario() -> None:
        async with serving(lambda i: OK) as server:
            answers, pool = await send_all(server, 50, opened=2, limit=5)
            assert set(answers.seen.values()) == {(200, "")}
            assert sorted(map(int, server.bodies)) == list(range(50))
            assert server.max_open == 5
            assert pool.held_back == 45

    asyncio.run(scenario())


def test_requests_within_the_limit_are_not_held_back() -> None:
    async def scenario() -> None:
        async with serving(lambda i: OK) as server:
            _, pool = await send_all(server, 50, opened=2, limit=50)
            assert pool.held_back == 0

    asyncio.run(scenario())


def test_server_that_closes_after_each_answer_loses_no_request() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    async def scenario() -> None:
        async with serving(lambda i: closing) as server:
            answers, _ = await send_all(server, 30, limit=4)
            assert set(answers.seen.values()) == {(200, "")}
            assert server.connections >= 30

    asyncio.run(scenario())


def test_request_whose_connection_is_dropped_is_an_error_and_not_sent_again() -> None:
    async def scenario() -> None:
        async with serving(lambda i: b"") as server:
            answers, _ = await send_all(server, 10, limit=3)
            assert {status for status, _ in answers.seen.values()} == {NO_ANSWER}
            assert {error for _, error in answers.seen.values()} == {"connection lost"}
            assert sorted(map(int, server.bodies)) == list(range(10))

    asyncio.run(scenario())


def test_answer_that_is_not_http_is_an_error() -> None:
    async def scenario() -> None:
        async with serving(lambda i: b"SSH-2.0-OpenSSH_9.2\r\n") as server:
            answers, _ = await send_all(server, 1)
            status, error = answers.seen[0]
            assert status == NO_ANSWER
            assert error.startswith("answer is not HTTP")

    asyncio.run(scenario())


def test_status_of_each_answer_reaches_its_own_request() -> None:
    statuses = [200, 429, 503, 404]

    def answer(i: int) -> bytes:
        return b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" % statuses[i % 4]

    async def scenario() -> None:
        async with serving(answer) as server:
            answers, _ = await send_all(server, 40, limit=1)
            assert [answers.seen[i] for i in range(40)] == [(statuses[i % 4], "") for i in range(40)]

    asyncio.run(scenario())


def test_server_gone_during_the_run_fails_what_waits() -> None:
    async def scenario() -> None:
        answers = Answers(8)
        with socket.create_server(("127.0.0.1", 0)) as never_accepts:
            target = Target(f"http://127.0.0.1:{never_accepts.getsockname()[1]}/")
            pool = Pool(target, 2, answers)
            await pool.open(1)
            for i in range(8):
                pool.send(i, target.request(None))
        await asyncio.wait_for(answers.complete.wait(), 30)
        await pool.close()
        assert {status for status, _ in answers.seen.values()} == {NO_ANSWER}
        assert any("cannot connect: " in error for _, error in answers.seen.values())

    asyncio.run(scenario())


def test_no_server_is_reported_in_one_line() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        pool = Pool(Target(f"http://127.0.0.1:{port}/"), 4, Answers(0))
        with pytest.raises(LoadError, match=rf"cannot connect to 127.0.0.1:{port}: .*is it running\?"):
            asyncio.run(pool.open(4))


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("https://host/", "give http://host:port/path"),
        ("host:8000/v1", "give http://host:port/path"),
        ("http://", "give http://host:port/path"),
        ("http://host:99999/", "Port out of range"),
    ],
)
def test_target_that_is_no_http_url_is_an_error(url: str, error: str) -> None:
    with pytest.raises(LoadError, match=error):
        Target(url)


def test_header_cannot_smuggle_a_second_line() -> None:
    with pytest.raises(LoadError, match="header 'X-A'"):
        Target("http://host/", {"X-A": "1\r\nX-B: 2"})


def test_request_carries_query_headers_and_the_length_of_its_body() -> None:
    target = Target("http://host:8000/v1/route?rows=3", {"X-Latency-Budget-Ms": "10"})
    assert target.address == ("host", 8000)
    assert target.request(None) == (
        b"GET /v1/route?rows=3 HTTP/1.1\r\nHost: host:8000\r\nX-Latency-Budget-Ms: 10\r\n\r\n"
    )
    assert target.request(b"{}").endswith(b"Content-Length: 2\r\n\r\n{}")
    assert target.request(b"").startswith(b"POST ")
