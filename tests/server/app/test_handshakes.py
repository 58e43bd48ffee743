"""TLS handshakes in one process: which are dropped under pressure, and what follows a finished one."""

from __future__ import annotations

import asyncio
import select
import shutil
import socket
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


class Accepted(asyncio.Transport):
    """The server's end of a connection, with an address of the test's choice."""

    def __init__(self, address: str, own: socket.socket) -> None:
        super().__init__({"peername": (address, 1024, 0, 0), "socket": own})
        self._own = own

    def abort(self) -> None:
        self._own.close()


class Echo(asyncio.Protocol):
    """Answers what it gets; other handshakes begin as soon as it is connected."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._handshakes.begin(Handshake(self._handshakes, lambda: Echo(self._handshakes)))

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


def shown(folder: Path, limits: ConnectionLimits) -> tuple[ssl.SSLContext, HttpFrontend]:
    """The context of a new certificate, server.crt in that folder, and a frontend."""

    async def app(*_: object) -> None:
        raise AssertionError

    return server_context(*certified(folder, "server")), HttpFrontend(app, {}, Engine(), limits)


def test_connections_with_a_finished_handshake_are_not_ended_by_others(tmp_path: Path) -> None:
    one = replace(ConnectionLimits(), connections=1)

    async def run() -> bytes:
        handshakes = Handshakes(*shown(tmp_path, one))
        server = await asyncio.get_running_loop().create_server(
            lambda: Handshake(handshakes, lambda: Echo(handshakes)), "127.0.0.1", 0
        )
        context = trusting(tmp_path / "server.crt")
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


def test_a_client_with_many_addresses_of_ipv6_keeps_no_other_out(tmp_path: Path) -> None:
    four = replace(ConnectionLimits(), connections=40)
    addresses = ["2001:db8:0:1::1", *(f"2001:db8::{i}" for i in range(8)), "::ffff:192.0.2.1"]
    ends: list[tuple[str, socket.socket]] = []

    async def run() -> list[str]:
        handshakes = Handshakes(*shown(tmp_path, four))
        for address in addresses:
            own, client = socket.socketpair()
            ends.append((address, client))
            Handshake(handshakes, asyncio.Protocol).connection_made(Accepted(address, own))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [address for address, client in ends if not select.select([client], [], [], 0)[0]]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        left = runner.run(run())
    for _, client in ends:
        client.close()
    assert left == ["2001:db8:0:1::1", "2001:db8::6", "2001:db8::7", "::ffff:192.0.2.1"]
