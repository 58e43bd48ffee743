"""Reasons: the answer, the metrics and the page know the same ones as the router."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest

from polyrec.planner.routing.query import DEGRADED, Dispatch, Part, Query, Reason
from polyrec.server.dispatch.answer import Answer, Outbox, Pending, QueryPayload
from polyrec.server.dispatch.parts import scatter
from polyrec.server.lanes.tiered_runtime import BatchView
from polyrec.server.metrics.metrics import REASONS

PAGE = Path(__file__).parents[2] / "server/http/status_page/words.js"


def answered(reason: Reason, lost: bool) -> Answer:
    """Answers a query of one row from a batch with that reason. lost: a row of it was lost by its tier."""

    async def ask() -> Answer:
        query = Query(1, 0.0, 1.0)
        query.payload = QueryPayload(None, Pending(Outbox(asyncio.get_running_loop())))  # type: ignore[arg-type]
        dispatch = Dispatch(0, 0, [Part(query, 0, 1)], 1, reason, 0.0, 1e-3, 1e-3)
        view = BatchView(None, None, None) if lost else None  # type: ignore[arg-type]
        scatter(dispatch, dispatch.parts, np.ones(1, np.float32), 1e-3, view)
        answer = query.payload.answer.outcome
        assert isinstance(answer, Answer)
        return answer

    return asyncio.run(ask())


@pytest.mark.parametrize("reason", list(Reason))
def test_answers_report_the_reason_of_their_batchs_path(reason):
    answer = answered(reason, lost=False)
    assert answer.degraded == (reason in DEGRADED)
    assert answer.reason == (reason.value if reason in DEGRADED else None)
    assert answered(reason, lost=True).reason == "failure"


def test_metrics_and_the_page_know_every_reason():
    assert set(REASONS) == {"load", "deadline", "failure", "probe"} == {r.value for r in DEGRADED}
    words = re.search(r"const REASONS = {(.*?)};", PAGE.read_text(), re.DOTALL)
    assert words is not None
    assert set(re.findall(r"(\w+): \"", words[1])) == set(REASONS)
