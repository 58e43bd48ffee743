"""The share of an event loop's time that a dispatcher's router is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.dispatch.control_loop import TICK_S
from polyrec.server.dispatch.dispatcher import Dispatcher, clock


def test_work_on_anothers_queries_is_not_counted_as_ones_own(
    plan: Plan, opened: Callable[[Plan], Engine], request_: Any, tensors: Callable[[Any], Any]
) -> None:
    busy, quiet = (opened(plan).serving for _ in range(2))
    rows = busy.codec.inputs.rows(tensors(request_)).part(0, 1)

    async def answers(dispatcher: Dispatcher, queries: int) -> None:
        pending = [dispatcher.submit(rows, clock(), 60.0).payload.answer for _ in range(queries)]
        for answer in pending:
            await answer

    async def run() -> None:
        quiet.dispatcher.share_loop(busy.dispatcher)
        for _ in range(12):
            await answers(quiet.dispatcher, 60)
            await answers(busy.dispatcher, 1200)
            await asyncio.sleep(TICK_S)

    with asyncio.Runner() as runner:
        runner.run(run())
    costs = [serving.dispatcher.router.state.front.query_s for serving in (busy, quiet)]
    # of all the loop's time the quiet one's queries would be twenty times as dear
    assert np.divide(*costs[::-1]) < 8
