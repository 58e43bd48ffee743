"""Dispatchers of one path, requests for them, and fetchers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.planner.plan import LaneKind, Limits
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.rows import Columns
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.dispatch.fetcher import Fetcher
from polyrec.server.lanes.inline import InlineLane
from polyrec.server.lanes.lane import Lane
from polyrec.server.lanes.threaded import ThreadedLane
from tests.models.tiers.redis_server import RedisServer
from tests.server.dispatch.dispatching import Tally, dispatcher
from tests.server.dispatch.fetching import Run


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> Runtime:
    return open_runtime("torch", bundle)


@pytest.fixture(params=["inline", "thread"])
def kind(request: pytest.FixtureRequest) -> LaneKind:
    kind: LaneKind = request.param
    return kind


@pytest.fixture
def make(
    bundle: Bundle, runtime: Runtime, kind: LaneKind
) -> Iterator[Callable[..., tuple[Dispatcher, Tally]]]:
    lanes: list[Lane] = []

    def make(runtime: Any = runtime, **limits: int) -> tuple[Dispatcher, Tally]:
        runtimes = {"table@cpu": runtime}
        lane: Lane = InlineLane("cpu", runtimes) if kind == "inline" else ThreadedLane("cpu", runtimes)
        lanes.append(lane)
        return dispatcher(bundle, lane, kind, **limits)

    yield make
    for lane in lanes:
        lane.close()


@pytest.fixture(scope="module")
def ranking(bundle: Bundle) -> Callable[..., Columns]:
    """A ranking request for the given items."""
    decoder = JsonDecoder(bundle.manifest.schema_, Limits())

    def rows(*items: str) -> Columns:
        listed = ",".join(f'{{"item": "{item}"}}' for item in items)
        return decoder.rank(f'{{"candidates": [{listed}]}}'.encode()).rows

    return rows


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run(test: Coroutine[None, None, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test)

    return run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    fetcher = Fetcher()
    yield fetcher
    fetcher.close()
