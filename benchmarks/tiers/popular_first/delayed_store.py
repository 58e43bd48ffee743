"""Runs a Redis server with a model's rows, behind a proxy that delays every request.

    python -m benchmarks.tiers.popular_first.delayed_store PORT SECONDS

runs the proxy alone: it prints its own port on 127.0.0.1 and forwards connections to PORT. It is a process of
its own, as its threads would otherwise share the interpreter with what is measured.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.tier_settings import RemoteStore, TierCuts, TierSettings
from tests.models.tiers.redis_server import RedisServer

CHUNK = 1 << 20
NICENESS = 10
"""Added to both processes' niceness: on another machine they would not take the server's cores."""


@contextmanager
def delayed_store(bundle: Bundle, cuts: dict[str, TierCuts], delay_s: float, folder: Path) -> Iterator[str]:
    """Starts both, stores the remote rows of the cuts, and yields the proxy's URL."""
    server = RedisServer(folder)
    try:
        nicer = min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
        os.setpriority(os.PRIO_PROCESS, server.pid, nicer)
        store = RemoteStore(url=server.url, fill=True, timeout_ms=10_000)
        open_tiers(bundle, TierSettings(cuts=cuts, remote=store)).close()
        command = [sys.executable, "-m", __spec__.name, str(server.port), str(delay_s)]
        proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            os.setpriority(os.PRIO_PROCESS, proxy.pid, nicer)
            assert proxy.stdout is not None
            yield f"redis://127.0.0.1:{int(proxy.stdout.readline())}"
        finally:
            proxy.kill()
            proxy.wait()
    finally:
        server.kill()


def forward(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Copies what is read from one socket to another, each piece after a delay, until either closes."""
    with suppress(OSError):
        while data := source.recv(CHUNK):
            if delay_s:
                time.sleep(delay_s)
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def main() -> None:
    port, delay_s = int(sys.argv[1]), float(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            store = socket.create_connection(("127.0.0.1", port))
            for end in (client, store):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=forward, args=(client, store, delay_s), daemon=True).start()
            threading.Thread(target=forward, args=(store, client, 0.0), daemon=True).start()


if __name__ == "__main__":
    main()
