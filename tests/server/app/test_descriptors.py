"""Connections leave file descriptors for everything else."""

from __future__ import annotations

import http.client
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from polyrec.server.app.settings.environment import load_settings
from polyrec.server.child import ServerProcess, announced, environ_of
from polyrec.server.http.connection.limits import RESERVED_DESCRIPTORS, SURPLUS_DESCRIPTORS, max_connections

DESCRIPTORS, LANES = 160, 6
"""Limit of a server whose lanes have half of the descriptors."""


@contextmanager
def limited_server(bundle: Path, stderr: Path, **settings: object) -> Iterator[ServerProcess]:
    with stderr.open("w") as messages:
        command = (
            "bash",
            "-c",
            f'ulimit -n {DESCRIPTORS}; exec "$@"',
            "-",
            sys.executable,
            "-m",
            "polyrec.server",
        )
        environ = environ_of({"bundle": bundle, "lane": "process", "lanes": LANES} | settings)
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=messages, text=True)
        with announced(process, None) as server:
            yield server


def status(url: str, path: str) -> tuple[int, str]:
    """Answer of another client than the one with all connections."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(
        address.hostname, address.port, timeout=30, source_address=("127.0.0.2", 0)
    )
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize("most", [pytest.param(None, marks=pytest.mark.long), 1000])
def test_idle_connections_leave_descriptors_for_other_clients(
    bundle_dir: Path, tmp_path: Path, most: int | None
) -> None:
    settings = {} if most is None else {"max_connections": most}
    with limited_server(bundle_dir, tmp_path / "messages", **settings) as server, ExitStack() as opened:
        address = urlsplit(server.url)
        for _ in range(DESCRIPTORS):
            opened.enter_context(socket.create_connection((address.hostname, address.port), timeout=30))
        assert [status(server.url, "/livez")[0] for _ in range(5)] == [200] * 5
        assert 'limit="connections"' in status(server.url, "/metrics")[1]
    warned = "connections instead of 1000" in (tmp_path / "messages").read_text()
    assert warned == (most is not None)


def test_a_given_maximum_raises_the_soft_limit_too() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(256, soft)
    if hard != resource.RLIM_INFINITY and hard <= lower:
        pytest.skip("the hard limit is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        load_settings({"bundle": "b", "max_connections": 1000}, {}).connection_limits()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > lower
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("open_now", [10, 40, 1000])
def test_a_reload_has_descriptors_too(open_now: int) -> None:
    most = max_connections(open_now)
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65536)
    left = limit - open_now - most
    assert left >= min(open_now, (limit - open_now) // 2)
    assert left >= min(SURPLUS_DESCRIPTORS, (limit - open_now) // 2)
    assert open_now + left >= min(RESERVED_DESCRIPTORS, limit // 2)
