"""The share of an event loop's time that a dispatcher's router sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from polyrec.server.dispatch.control_loop import TICK_S, ControlLoop
from polyrec.server.dispatch.dispatcher import Dispatcher

TRIALS = 20
"""A busy machine may take the core away during the quiet one's few queries."""


def test_work_on_anothers_queries_is_not_counted_as_ones_own(
    plan: Plan, opened: Callable[[Plan], Engine], request_: Any, tensors: Callable[[Any], Any]
) -> None:
    busy, quiet = (opened(plan).serving for _ in range(2))
    rows = busy.oip_codec.inputs.rows(tensors(request_)).part(0, 1)

    async def answers(dispatcher: Dispatcher, queries: int) -> None:
        pending = [dispatcher.submit(rows, clock(), 60.0).payload.answer for _ in range(queries)]
        for answer in pending:
            await answer

    async def run() -> None:
        for _ in range(12):
            await answers(quiet.dispatcher, 60)
            await answers(busy.dispatcher, 1200)
            await asyncio.sleep(TICK_S)

    def ratio() -> float:
        runner.run(run())
        fronts = [serving.dispatcher.router.state.front for serving in (quiet, busy)]
        return fronts[0].query_s / fronts[1].query_s

    quiet.dispatcher.share_loop(busy.dispatcher)
    with asyncio.Runner() as runner:
        ratios = (ratio() for _ in range(TRIALS))
        # of all the loop's time the quiet one's queries would be twenty times as dear, in every trial
        assert any(each < 8 for each in ratios)


def test_ticks_go_on_after_one_that_failed(
    plan: Plan, opened: Callable[[Plan], Engine], caplog: pytest.LogCaptureFixture
) -> None:
    """Else rates and prices would stay as they are until the server is started again."""
    serving = opened(plan).serving
    ticks = 0

    async def run() -> None:
        third = asyncio.Event()

        def on_tick() -> bool:
            nonlocal ticks
            ticks += 1
            if ticks == 3:
                third.set()
            raise IndexError("a lane that does not exist")

        observer = serving.dispatcher._executor.observer
        control = ControlLoop(serving.dispatcher.router, observer, on_tick, lambda: (0.0, 0))
        control.start(asyncio.get_running_loop())
        await asyncio.wait_for(third.wait(), 60)
        control.close()

    asyncio.run(run())
    lines = [record for record in caplog.records if "tick failed" in record.message]
    assert len(lines) == 1  # not ten a second
