"""Runs a server in this process with real requests but without sockets, whose noise would hide small effects.

Bytes are fed to the server's own HTTP protocol, and a transport captures what it writes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from uvicorn.server import ServerState

from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.runtimes import best_runtime
from polyrec.planner.plan import single_path_plan
from polyrec.server.app.engine import Engine
from polyrec.server.http.app import Application, create_app
from polyrec.server.http.connection.connection import Connection
from polyrec.server.http.connection.frontend import HttpFrontend

REQUESTS, ROWS = 64, 23
"""Requests per block; a multiple of the number of answers counted at once (server/metrics/counting.py)."""
BODY = json.dumps({"instances": [{}] * ROWS}).encode()
REQUEST = (
    b"POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1:8000\r\ncontent-type: application/json\r\n"
    b"x-latency-budget-ms: 60000\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)

T = TypeVar("T")


def opened(bundle: str | Path) -> tuple[Engine, Application]:
    """Returns a real engine of one bundle, and its request handler. The caller closes the engine."""
    retain_freed_memory()
    found = load_bundle(bundle)
    engine = Engine()
    runtime, device = best_runtime()
    engine.load(single_path_plan(found.path, found.name, runtime, device))
    return engine, create_app(engine)


def settle() -> None:
    """Freezes live objects for the garbage collector, as the server does after loading."""
    gc.collect()
    gc.freeze()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the kind of event loop that the server uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class AnswerTransport(asyncio.Transport):
    """A transport that captures one answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._answer: asyncio.Future[bytes] = loop.create_future()

    def expect(self) -> asyncio.Future[bytes]:
        self._answer = self._loop.create_future()
        return self._answer

    def write(self, data: Any) -> None:
        self._answer.set_result(bytes(data))

    def is_closing(self) -> bool:
        return False


class InProcessClient:
    """One connection to the application, created on the loop that sends."""

    def __init__(self, app: Application) -> None:
        loop = asyncio.get_running_loop()
        self._transport = AnswerTransport(loop)
        self._protocol = Connection(HttpFrontend(app, app.hot, app.engine), ServerState())
        self._protocol.connection_made(self._transport)

    async def ask(self, request: bytes = REQUEST) -> bytes:
        """Sends one request; returns the bytes of its answer."""
        answer = self._transport.expect()
        self._protocol.data_received(request)
        return await answer

    async def block_s(self) -> float:
        """Returns the CPU seconds per request over a block of sequential ones.

        Excludes other work on this core, but not its effect on the caches.
        """
        start = time.thread_time()
        for _ in range(REQUESTS):
            answer = await self.ask()
            assert answer.startswith(b"HTTP/1.1 200 "), answer
        return (time.thread_time() - start) / REQUESTS
