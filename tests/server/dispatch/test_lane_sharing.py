"""Dispatchers of several models on lanes that share a core."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import orjson
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.routing.sharing.machine_time import MachineTime, ModelShare
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.server.clock import clock
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.dispatch.executor import ExecutionPath
from polyrec.server.dispatch.observer import ExecutedBatch
from polyrec.server.lanes.inline import InlineLane
from polyrec.server.lanes.threaded import ThreadedLane

CORE = frozenset({0})
QUICK = LatencyModel(rows=(1, 1024), median_s=(1e-6, 1e-4), tail_s=(0.5, 0.5))
"""Long in the tail: a batch that is overdue, as on a busy machine, is given up, and another one begins."""
BUDGET_S = 60.0


class Held:
    """A runtime that waits until it is let go, and counts how many of them execute at once."""

    executing = most = 0

    def __init__(self, bundle: Bundle, is_held: bool = True) -> None:
        self._runtime = open_runtime("torch", bundle)
        self.name, self.device = self._runtime.name, self._runtime.device
        self.entered, self.release = threading.Event(), threading.Event()
        if not is_held:
            self.release.set()

    def embed(self, batch: Batch) -> Any:
        Held.executing += 1
        Held.most = max(Held.most, Held.executing)
        self.entered.set()
        self.release.wait()
        return self._runtime.embed(batch)

    def dense(self, embedded: Any) -> F32:
        answer = self._runtime.dense(embedded)
        Held.executing -= 1
        return answer


class Silent:
    """An observer of nothing."""

    def batch_executed(self, executed: ExecutedBatch) -> None: ...
    def lane_alive(self, lane: int, alive: bool) -> None: ...
    def ticked(self, late_s: float, took_s: float) -> None: ...


def sharing(bundle: Bundle, runtime: Held, kind: LaneKind, machine: MachineTime) -> Dispatcher:
    """One path on one lane of a core that is shared."""
    lane_type = InlineLane if kind == "inline" else ThreadedLane
    lane = lane_type("cpu", {"table@cpu": runtime})
    paths, lanes = [PathSpec("table@cpu", "cpu", 0.9, QUICK)], [LaneSpec("cpu", "cpu", kind)]
    router = Router(RouterState(paths, lanes, Routing(), Limits(), clock()))
    made = Dispatcher(router, [lane], [ExecutionPath("table@cpu", bundle.encoder)], Silent())
    made.share_time(machine, [LanePlace("cpu", kind, CORE)], ModelShare())
    return made


def rows_of(bundle: Bundle, request: Any) -> Rows:
    body = orjson.dumps({"columns": request.columns})
    return JsonDecoder(bundle.manifest.schema_, Limits()).predict(body)


@pytest.fixture(autouse=True)
def _none_executes() -> None:
    Held.executing = Held.most = 0


def test_a_batch_waits_until_the_other_models_has_ended(bundle: Bundle, request_: Any) -> None:
    machine = MachineTime(CORE)
    held = [Held(bundle), Held(bundle)]
    dispatchers = [sharing(bundle, each, "thread", machine) for each in held]
    rows = rows_of(bundle, request_)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        first = dispatchers[0].submit(rows, clock(), BUDGET_S).payload.answer
        await loop.run_in_executor(None, held[0].entered.wait)
        second = dispatchers[1].submit(rows, clock(), BUDGET_S).payload.answer
        for _ in range(20):
            await asyncio.sleep(0)
        assert not held[1].entered.is_set()
        held[0].release.set()
        await first
        await loop.run_in_executor(None, held[1].entered.wait)
        held[1].release.set()
        await second

    try:
        asyncio.run(run())
        assert Held.most == 1
    finally:
        for each in held:
            each.release.set()
        for dispatcher in dispatchers:
            dispatcher.close()


@pytest.mark.parametrize("kind", ["inline", "thread"])
def test_all_queries_of_both_are_answered_one_batch_at_a_time(
    bundle: Bundle, request_: Any, kind: LaneKind
) -> None:
    machine = MachineTime(CORE)
    dispatchers = [sharing(bundle, Held(bundle, is_held=False), kind, machine) for _ in range(2)]
    rows = rows_of(bundle, request_)

    async def client(dispatcher: Dispatcher) -> None:
        for _ in range(100):
            await dispatcher.submit(rows, clock(), BUDGET_S).payload.answer

    async def run() -> None:
        await asyncio.gather(*(client(each) for each in dispatchers for _ in range(4)))

    try:
        asyncio.run(run())
        assert Held.most == 1
    finally:
        for dispatcher in dispatchers:
            dispatcher.close()
    assert not machine.models


def test_the_more_urgent_query_of_another_model_that_came_later_is_executed_first(
    bundle: Bundle, request_: Any
) -> None:
    machine = MachineTime(CORE)
    dispatchers = [sharing(bundle, Held(bundle, is_held=False), "inline", machine) for _ in range(2)]
    rows = rows_of(bundle, request_)
    order: list[str] = []

    async def run() -> None:
        ample = dispatchers[0].submit(rows, clock(), BUDGET_S).payload.answer
        urgent = dispatchers[1].submit(rows, clock(), BUDGET_S / 2).payload.answer
        ample.listen(lambda _: order.append("ample"))
        urgent.listen(lambda _: order.append("urgent"))
        while len(order) < 2:
            await asyncio.sleep(0)

    try:
        asyncio.run(run())
        assert order == ["urgent", "ample"]
    finally:
        for dispatcher in dispatchers:
            dispatcher.close()
