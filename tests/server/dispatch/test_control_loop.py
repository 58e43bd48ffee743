"""The share of an event loop's time that a dispatcher's router sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from polyrec.server.dispatch.control_loop import TICK_S
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
