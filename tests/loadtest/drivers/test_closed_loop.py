from __future__ import annotations

import asyncio

import pytest

from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import LoadError
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


def test_an_error_answer_ends_the_loop() -> None:
    with pytest.raises(LoadError, match="status 503"):
        against(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", 2)
