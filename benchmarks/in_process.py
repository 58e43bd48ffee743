"""A server in this process, asked without sockets, whose noise would hide what a benchmark looks for."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

from models.bundle import load_bundle
from models.memory import keep_memory
from models.runtimes import best_runtime
from planner.plan import single_path_plan
from server.engine import Engine
from server.http.app import Application, create_app

REQUESTS, ROWS = 100, 23
BODY = json.dumps({"instances": [{}] * ROWS}).encode()


def opened(bundle: str | Path) -> tuple[Engine, Application]:
    """A real engine of one bundle, and what answers its requests. The caller closes the engine."""
    keep_memory()
    found = load_bundle(bundle)
    engine = Engine()
    runtime, device = best_runtime(found)
    engine.load(single_path_plan(found.path, found.name, runtime, device))
    return engine, create_app(engine)


def settle() -> None:
    """As the server does once it has loaded: what lives from now on is not searched for garbage."""
    gc.collect()
    gc.freeze()


async def block_s(app: Application) -> float:
    """Seconds a request, of a block of them one after another."""
    start = time.perf_counter()
    for _ in range(REQUESTS):
        await ask(app)
    return (time.perf_counter() - start) / REQUESTS


async def ask(app: Application) -> None:
    """One request, as the server's protocol would bring it."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200

    headers = [(b"content-length", str(len(BODY)).encode()), (b"x-latency-budget-ms", b"60000")]
    scope = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": headers}
    scope |= {"scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 8000)}
    await app(scope, receive, send)  # type: ignore[arg-type]
