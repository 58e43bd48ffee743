"""Comparisons that are made without spare time, and a rollout without them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from polyrec.cli.serve.rollout_call import lines
from polyrec.planner.rollout.expected_loss import PairRecords
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Answer
from polyrec.server.rollout.shadow import OPEN_PER_LANE, QUEUE_SHARE, Shadow
from tests.server.rollout.conftest import PATIENCE_S, QUICK, PlanOf, Trial

NEVER = 1e-9
"""Share of a shadow that never samples in spare time."""


def test_a_bad_version_is_found_without_spare_time(
    trial: Trial, plan_of: PlanOf, requests: list[Any]
) -> None:
    bounds = QUICK | {"min_requests": 20, "max_psi": 1e6}
    trial.start(plan_of(0.3), share=0.1, shadow=NEVER, compare_per_s=50.0, bounds=bounds)
    answers = trial.ask_until_ended(requests[:20])
    assert {answer.status_code for answer in answers} == {200}
    ended = trial.ended()
    assert ended["outcome"] == "rolled_back"
    assert ended["reason"].startswith("scores of the same requests differ")
    compared = trial.client.metric("polyrec_rollout_comparisons_total", outcome="compared")
    assert compared >= ended["decision"]["figures"]["pairs"] >= 20
    assert trial.client.metric("polyrec_rollout_comparison_seconds_total") > 0


@pytest.fixture
def decoded(trial: Trial, request_: Any) -> Rows:
    """A request, as the codec gives it to the server."""
    body = orjson.dumps({"columns": request_.columns})
    rows: Rows = trial.engine.serving.json_decoder.predict(body)
    return rows


def shadow_of(trial: Trial, per_s: float) -> Shadow:
    """Compares the versions of the running trial, beside its own shadow."""
    rollout = trial.engine.rollout
    assert rollout is not None
    return Shadow(rollout.stable.serving, rollout.canary.serving, NEVER, per_s)


async def settled(shadow: Shadow) -> PairRecords:
    """The records of group 3 once all comparisons have ended."""
    async with asyncio.timeout(PATIENCE_S):
        while shadow.open:
            await asyncio.sleep(0.01)
    return shadow.take()[3]


@pytest.mark.parametrize("reason", [None, "load"])
def test_a_degraded_answer_is_not_compared_but_asked_for_again(
    *,
    trial: Trial,
    plan_of: PlanOf,
    request_: Any,
    decoded: Rows,
    offline: Callable[[Any], Any],
    reason: str | None,
) -> None:
    trial.start(plan_of(0.5), share=0, shadow=NEVER)
    shadow = shadow_of(trial, 50.0)
    given = np.full(decoded.rows, 0.25, np.float32)

    async def compare() -> PairRecords:
        shadow.repeat(decoded, Answer(given, 0, reason, 0.0, 0.0, given.size, 0), given, 3)
        return await settled(shadow)

    records = trial.client.runner.run(compare())
    ((stable, canary),) = records.pairs
    assert np.allclose(stable, given if reason is None else offline(request_), atol=1e-5)
    assert not np.allclose(canary, offline(request_), atol=1e-3)
    assert records.spent_s > 0


def test_few_comparisons_are_open_at_a_time_and_none_after_the_end(
    trial: Trial, plan_of: PlanOf, decoded: Rows
) -> None:
    trial.start(plan_of(1.0), share=0, shadow=NEVER)
    shadow = shadow_of(trial, 1e9)
    scores = np.full(decoded.rows, 0.25, np.float32)
    answer = Answer(scores, 0, None, 0.0, 0.0, scores.size, 0)

    async def compare() -> tuple[int, PairRecords]:
        for _ in range(10 * OPEN_PER_LANE):
            shadow.repeat(decoded, answer, scores, 3)
        most = shadow.open
        await asyncio.sleep(0)  # they are queued
        shadow.close()
        return most, await settled(shadow)

    most, records = trial.client.runner.run(compare())
    rollout = trial.engine.rollout
    assert rollout is not None
    assert most == OPEN_PER_LANE * len(rollout.canary.serving.lanes)
    assert (records.pairs, records.failed) == ([], 0)


@pytest.mark.parametrize(("share", "number"), [(1 / 3, 3), (1.2, 1)])
def test_requests_asked_again_leave_clients_the_room_in_the_queue(
    trial: Trial, plan_of: PlanOf, request_: Any, share: float, number: int
) -> None:
    """Past capacity they wait for seconds, and clients get 429 if the queue is full."""
    trial.start(plan_of(1.0), share=0, shadow=NEVER)
    shadow = shadow_of(trial, 1e9)
    room = int(QUEUE_SHARE * trial.engine.plan.limits.max_queued_rows)
    columns = {name: (values * 2 * room)[: int(share * room)] for name, values in request_.columns.items()}
    rows = trial.engine.serving.json_decoder.predict(orjson.dumps({"columns": columns}))
    scores = np.full(rows.rows, 0.25, np.float32)
    degraded = Answer(scores, 0, "load", 0.0, 0.0, scores.size, 0)

    async def compare() -> tuple[int, int]:
        for _ in range(OPEN_PER_LANE):
            shadow.repeat(rows, degraded, scores)
        asked = shadow.open
        shadow.repeat(rows, degraded._replace(reason=None), scores)  # goes to the canary's queue
        both = shadow.open
        shadow.close()
        return asked, both

    assert trial.client.runner.run(compare()) == (number, number + 1)


def test_a_version_with_too_few_comparisons_is_not_promoted_and_everything_says_so(
    trial: Trial, plan_of: PlanOf, requests: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    bounds = QUICK | {"min_requests": 10**6, "judge_within_s": 3.0, "promote_after_s": 0.1}
    trial.start(plan_of(1.0), share=0.5, bounds=bounds)
    shown: list[str] = []
    reasons: list[str] = []
    while trial.engine.rollout is not None:
        trial.ask(requests[:20])
        shown += lines(trial.status())
        rollout = trial.client.send("GET", "/v1/status").json()["rollout"]
        reasons += [rollout["reason"]] if rollout is not None and rollout["is_short"] else []
    ended = trial.ended()
    assert any("continue: not enough comparisons yet: " in line for line in shown)
    assert any("; rolled back in " in reason for reason in reasons)
    assert ended["outcome"] == "rolled_back"
    said = "not enough comparisons, not promoted: "
    assert ended["reason"].startswith(said)
    assert f"rolled back: {said}" in caplog.text
    assert said in str(trial.client.send("GET", "/v1/status").json()["events"])
    assert said in lines(trial.status())[0]


def test_a_jump_of_the_wall_clock_does_not_change_how_long_a_rollout_lasted(
    trial: Trial, plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.start(plan_of(1.0))
    monkeypatch.setattr("time.time", lambda: 0.0)
    running = trial.status()["rollout"]
    ended = trial.call("rollback").json()["ended"][0]
    assert ended["ended"] < ended["began"]
    assert 0 < running["age_s"] <= ended["lasted_s"]
    assert re.search(r" after \d+ s: ", lines(trial.status())[0])
