"""The real HAProxy in front of a server that answers everything."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import pytest

from polyrec.cluster.haproxy_config import Endpoint
from polyrec.cluster.haproxy_process import HAProxy, private_folder
from polyrec.cluster.spec import ClusterError
from polyrec.cluster.targets import is_administration

REFUSED = [
    "/v1/admin/reload",
    "/v1/%61dmin/reload",
    "/v1/models/x/admin/note",
    "/v1%2fmodels/x/adm%69n/note",
    "/v2/repository/models/x/load",
    "/v2/repository/%6dodels/x/unload",
]
TAKEN = ["/v1/predict", "/v1/models/administration/predict", "/v1/models/admin/rank", "/v2/repository/index"]


def a_free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


async def statuses(folder: Path, targets: Sequence[str]) -> dict[str, str]:
    """Returns the statuses that HAProxy answers, by target."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        finally:
            writer.close()  # also when the end of the loop cancels it

    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ready up 100%\n")
        writer.close()

    port, haproxy, found = a_free_port(), None, {}
    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        await asyncio.start_server(agent, "127.0.0.1", 0) as agents,
    ):
        ports = [one.sockets[0].getsockname()[1] for one in (server, agents)]
        haproxy = HAProxy(folder, "127.0.0.1", port)
        await haproxy.configure([Endpoint("a", "127.0.0.1", *ports)])
        try:
            for target in targets:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
                found[target] = (await reader.read()).split(b" ")[1].decode()
                writer.close()
                await writer.wait_closed()
        finally:
            await haproxy.stop()
            end(folder / "haproxy.pid")
    return found


def end(pid_file: Path) -> None:
    """Ends HAProxy at once: while it starts, it may not take the signal of `stop`."""
    with suppress(ProcessLookupError):
        master = os.pidfd_open(int(pid_file.read_text()))
        signal.pidfd_send_signal(master, signal.SIGTERM)
        poller = select.poll()
        poller.register(master, select.POLLIN)
        assert poller.poll(30_000)
        os.close(master)


def test_administration_is_refused_however_its_path_is_written(tmp_path: Path) -> None:
    found = asyncio.run(statuses(private_folder(tmp_path / "haproxy"), REFUSED + TAKEN))
    assert found == dict.fromkeys(REFUSED, "403") | dict.fromkeys(TAKEN, "200")
    assert [is_administration(unquote(path)) for path in REFUSED + TAKEN] == [True] * 6 + [False] * 4


def test_a_folder_that_another_could_have_linked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ClusterError, match="is a link"):
        private_folder(tmp_path / "link")
