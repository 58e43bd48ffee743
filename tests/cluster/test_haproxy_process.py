"""The real HAProxy in front of servers that answer everything."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import pytest

from polyrec.cluster.haproxy_config import ERRORS, Endpoint
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
FALL = 3
"""Failed checks after which HAProxy takes a server out."""
TAKEN = ["/v1/predict", "/v1/models/administration/predict", "/v1/models/admin/rank", "/v2/repository/index"]


def a_free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@asynccontextmanager
async def replica(
    name: str, ready: bool, checked: asyncio.Event, predicts_s: float = 0.0
) -> AsyncIterator[Endpoint]:
    """A server and its agent; the server answers 200, to health checks only if it is ready.

    checked: set at the first check after HAProxy has taken a server that is not ready out.
    predicts_s: how long other requests take.
    """
    checks = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal checks
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    check = head.startswith(b"GET /readyz ")
                    checks += check
                    if checks > FALL:
                        checked.set()
                    if not check:
                        await asyncio.sleep(predicts_s)
                    status = b"200 OK" if ready or not check else b"503 not ready"
                    writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")
        finally:
            writer.close()  # also when the end of the loop cancels it

    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ready up 100%\n")
        writer.close()

    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        await asyncio.start_server(agent, "127.0.0.1", 0) as agents,
    ):
        port, agent_port = (one.sockets[0].getsockname()[1] for one in (server, agents))
        yield Endpoint(name, "127.0.0.1", port, agent_port)


@asynccontextmanager
async def balanced(folder: Path, *endpoints: Endpoint) -> AsyncIterator[tuple[HAProxy, int]]:
    """HAProxy in front of these, and its port; stopped as soon as it is used."""
    port = a_free_port()
    haproxy = HAProxy(folder, "127.0.0.1", port)
    await haproxy.configure(endpoints)
    master = os.pidfd_open(int((folder / "haproxy.pid").read_text()))
    try:
        yield haproxy, port
    finally:
        await haproxy.stop()
        poller = select.poll()
        poller.register(master, select.POLLIN)
        assert poller.poll(30_000)
        os.close(master)


async def ask(port: int, target: str, *headers: str) -> tuple[bytes, bytes]:
    """Returns the head and the body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {target} HTTP/1.1", "host: x", "connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head, body


async def status(port: int, target: str, *headers: str) -> str:
    """Returns the status of an answer."""
    head, _ = await ask(port, target, *headers)
    return head.split(b" ")[1].decode()


def test_administration_is_refused_however_its_path_is_written(tmp_path: Path) -> None:
    async def statuses() -> dict[str, str]:
        async with (
            replica("a", True, asyncio.Event()) as a,
            balanced(private_folder(tmp_path / "h"), a) as (_, port),
        ):
            return {target: await status(port, target) for target in REFUSED + TAKEN}

    assert asyncio.run(statuses()) == dict.fromkeys(REFUSED, "403") | dict.fromkeys(TAKEN, "200")
    assert [is_administration(unquote(path)) for path in REFUSED + TAKEN] == [True] * 6 + [False] * 4


def test_requests_are_answered_while_every_health_check_fails(tmp_path: Path) -> None:
    async def statuses() -> list[str]:
        down = asyncio.Event()
        ended = Endpoint("ended", "127.0.0.1", a_free_port(), a_free_port())
        async with (
            replica("busy", False, down) as busy,
            balanced(private_folder(tmp_path / "h"), busy, ended) as (haproxy, port),
        ):
            await down.wait()
            found = [await status(port, "/v1/predict") for _ in range(20)]
            return [*found, *(state.split()[0] for state in (await haproxy.servers()).values())]

    assert asyncio.run(statuses()) == ["200"] * 20 + ["DOWN"] * 2


def test_a_request_whose_body_came_after_its_head_is_retried(tmp_path: Path) -> None:
    """Most clients send the two apart."""
    asked: set[bytes] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Leaves each body unanswered once."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"POST"):
                    body = await reader.readexactly(1)
                    if body not in asked:
                        asked.add(body)
                        break
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async def statuses() -> list[bytes]:
        found = []
        async with (
            await asyncio.start_server(answer, "127.0.0.1", 0) as server,
            balanced(
                private_folder(tmp_path / "h"),
                *(Endpoint(n, "127.0.0.1", server.sockets[0].getsockname()[1], a_free_port()) for n in "ab"),
            ) as (haproxy, port),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for number in range(10):
                writer.write(b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n")
                await haproxy.servers()  # HAProxy has the head by then
                writer.write(b"%d" % number)
                found.append((await reader.readuntil(b"\r\n\r\n"))[:15])
            writer.close()
        return found

    assert asyncio.run(statuses()) == [b"HTTP/1.1 200 OK"] * 10
    assert len(asked) == 10


def test_haproxy_waits_for_the_budget_that_replicas_read(tmp_path: Path) -> None:
    async def statuses() -> list[str]:
        async with (
            replica("slow", True, asyncio.Event(), predicts_s=1.0) as slow,
            balanced(private_folder(tmp_path / "h"), slow) as (_, port),
        ):
            budgets = ["6e4", "6E+4", "60000.5", "60000", "0.5"]
            asked = [status(port, "/v1/predict", f"X-Latency-Budget-Ms: {budget}") for budget in budgets]
            return await asyncio.gather(*asked)

    assert asyncio.run(statuses()) == ["200", "200", "200", "200", "504"]


def test_errors_of_haproxy_have_the_form_of_a_replicas(tmp_path: Path) -> None:
    async def answers() -> list[tuple[bytes, bytes]]:
        async with (
            replica("slow", True, asyncio.Event(), predicts_s=1.0) as slow,
            balanced(private_folder(tmp_path / "h"), slow) as (haproxy, port),
        ):
            found = [
                await ask(port, REFUSED[0]),
                await ask(port, "/v1/predict", "X-Latency-Budget-Ms: 0.5"),
            ]
            await haproxy.configure([])
            return [*found, await ask(port, "/v1/predict")]

    found = asyncio.run(answers())
    assert [int(head.split(b" ")[1]) for head, _ in found] == [403, 504, 503]
    for head, body in found:
        assert b"\r\ncontent-type: application/json" in head.lower()
        assert json.loads(body) == {"error": ERRORS[int(head.split(b" ")[1])]}
    assert [b"\r\nretry-after: 1" in head.lower() for head, _ in found] == [False, False, True]


def test_haproxy_stops_and_reloads_at_once_after_a_start(tmp_path: Path) -> None:
    async def states(number: int) -> set[str]:
        ended = Endpoint("ended", "127.0.0.1", a_free_port(), a_free_port())
        async with balanced(private_folder(tmp_path / str(number))) as (haproxy, _):
            await haproxy.configure([ended])
            return set(await haproxy.servers())

    # signals that came while the master executed itself anew were lost four times in five
    for number in range(3):
        assert asyncio.run(states(number)) == {"ended"}


def test_a_configuration_that_haproxy_refuses_leaves_the_earlier_one(tmp_path: Path) -> None:
    async def found() -> tuple[str, set[str]]:
        async with (
            replica("a", True, asyncio.Event()) as a,
            balanced(private_folder(tmp_path / "h"), a) as (haproxy, port),
        ):
            with pytest.raises(ClusterError, match="HAProxy"):
                await haproxy.configure([a, Endpoint("b", "no such host", 1, 1)])
            return await status(port, "/v1/predict"), set(await haproxy.servers())

    assert asyncio.run(found()) == ("200", {"a"})


def test_a_folder_that_another_could_have_linked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ClusterError, match="is a link"):
        private_folder(tmp_path / "link")
