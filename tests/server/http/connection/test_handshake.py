"""What is a handshake's own, and what is the connection's that follows it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import uvloop

from polyrec.server.app.engine import Engine
from polyrec.server.app.tls import server_context
from polyrec.server.http.connection.frontend import HttpFrontend
from polyrec.server.http.connection.handshake import Handshake, Handshakes
from polyrec.server.http.connection.limits import ConnectionLimits
from tests.server.app.test_tls import certified, trusting

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")


class Echo(asyncio.Protocol):
    """Answers what it gets; other handshakes begin as soon as it is connected."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._handshakes.begin(Handshake(self._handshakes, lambda: Echo(self._handshakes)))

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


def test_no_other_handshake_ends_a_connection_whose_own_has_just_succeeded(tmp_path: Path) -> None:
    cert, key = certified(tmp_path, "server")
    one = replace(ConnectionLimits(), connections=1)

    async def app(*_: object) -> None:
        raise AssertionError

    async def run() -> bytes:
        handshakes = Handshakes(server_context(cert, key), HttpFrontend(app, {}, Engine(), one))
        server = await asyncio.get_running_loop().create_server(
            lambda: Handshake(handshakes, lambda: Echo(handshakes)), "127.0.0.1", 0
        )
        context: ssl.SSLContext = trusting(cert)
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.write(b"asked")
        answer = await reader.read(5)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(asyncio.wait_for(run(), 20)) == b"asked"
