"""Failures of a canary, and those that are the client's or the server's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.schema.encoder import Encoder
from polyrec.planner.plan import single_path_plan
from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.routing.admission.arrival import Arrival
from polyrec.server.clock import clock
from polyrec.server.errors import Defect
from polyrec.server.http.call import Call
from polyrec.server.http.oip import InferCodec
from polyrec.server.http.predictions import RankCodec
from tests.server.rollout.conftest import QUICK, PlanOf, Trial


def test_the_stable_version_answers_requests_that_the_canary_rejects(
    trial: Trial, plan_of: PlanOf, requests: list[Any]
) -> None:
    trial.start(plan_of(1.0), share=0.5)
    rollout = trial.engine.rollout
    assert rollout is not None
    for lane in range(len(rollout.canary.serving.lanes)):
        rollout.canary.serving.dispatcher.router.lane_down(lane)
    # the first rejections may be excused: the canary's new processes waited for a processor
    answers = trial.ask_until_ended(requests)
    assert {answer.status_code for answer in answers} == {200}
    ended = trial.ended()
    assert "the canary failed" in ended["reason"]
    assert ended["decision"]["figures"]["stable"]["failed"] == 0


def test_the_stable_version_answers_where_the_canarys_score_is_no_number(
    trial: Trial, plan_of: PlanOf, requests: list[Any], bundle: Bundle, tmp_path: Path
) -> None:
    """One row so large that products overflow passes the few rows that a load asks."""
    model = deepcopy(bundle.model())
    item = bundle.encoder.vocabularies["item"].encode_arrow(requests[0].table["item"].combine_chunks())[0]
    with torch.no_grad():
        weight = model.stage.store.weight
        weight[model.stage.rows.slice_of("item").start + int(item)] = 3e38
    broken = write_bundle(tmp_path / "table", model, bundle.manifest.representation, bundle.encoder, {}, {})
    document = orjson.loads(plan_of(1.0).read_bytes())
    document["paths"][0]["bundle"] = str(broken.path)
    (tmp_path / "plan.json").write_bytes(orjson.dumps(document))
    trial.start(tmp_path / "plan.json", share=0.5, shadow=0)
    for _ in range(20):
        trial.client.predict(requests[0])
    ended = trial.ended()
    assert "the canary failed" in ended["reason"]
    assert ended["decision"]["figures"]["canary"]["failed"] >= 3


def test_a_clients_mistake_is_not_the_canarys(trial: Trial, plan_of: PlanOf, requests: list[Any]) -> None:
    trial.start(plan_of(1.0), share=0.5, shadow=0)
    rollout = trial.engine.rollout
    assert rollout is not None
    wrong = {"columns": {**requests[0].columns, "price": [3e38] * requests[0].table.num_rows}}
    statuses = {trial.client.send("POST", "/v1/predict", json=wrong).status_code for _ in range(12)}
    assert statuses <= {200, 422}
    trial.client.send("POST", "/v1/predict", content=b"{")
    assert sum(records.failed for records in rollout.canary.take()) == 0
    trial.call("rollback")


@pytest.mark.parametrize("users", [1, 100])
def test_impossible_budgets_of_chosen_users_roll_nothing_back(
    trial: Trial, plan_of: PlanOf, requests: list[Any], users: int
) -> None:
    """Answers name the version, so a client can choose users that get the canary."""
    trial.start(plan_of(1.0), share=0.5, by="user_id", shadow=0, bounds=QUICK | {"max_failed": 0.01})
    names = (f"u{i}" for i in count())
    chosen: list[str] = []
    while len(chosen) < users:
        name = next(names)
        if rank(trial, requests[0], name).headers["x-polyrec-arm"] == "canary":
            chosen.append(name)
    for at in range(600):
        answer = rank(trial, requests[0], chosen[at % users], {"x-latency-budget-ms": "0.01"})
        assert answer.status_code in (429, 504)
    trial.ask(requests, 200 // len(requests))
    rollout = trial.engine.rollout
    assert rollout is not None
    figures = None
    while figures is None or figures["canary"]["requests"] < 50:
        decision = trial.status()["rollout"]["decision"]
        figures = decision and decision["figures"]
    assert figures["canary"]["failed"] == figures["canary"]["late"] == 0
    trial.call("rollback")


PATIENT = [(b"content-type", b"application/json"), (b"x-latency-budget-ms", b"2000000")]


def body_of(request: Any) -> bytes:
    return orjson.dumps({"context": request.context, "candidates": request.candidates})


@pytest.mark.parametrize("waited_s", [0.0, 1200.0])
def test_time_before_a_request_was_read_does_not_count_against_the_canary(
    trial: Trial, plan_of: PlanOf, requests: list[Any], waited_s: float
) -> None:
    """The event loop reads a request after more than half of its budget: the stable version answers."""
    trial.start(plan_of(1.0), share=0.5, shadow=0)
    rollout = trial.engine.rollout
    assert rollout is not None
    body = body_of(requests[0])
    trial.engine.max_budget_s = 2000.0

    async def ask() -> None:
        call = Call(trial.engine, RankCodec(), {"type": "http", "headers": PATIENT})
        call.admit()
        begun_s = clock() - waited_s
        call.reply(await call.answer(call.submit(body, Arrival(begun_s, begun_s, 1.0))))
        call.finish(200)

    for _ in range(4):
        trial.client.runner.run(ask())
    canary = ArmRecords.joined(rollout.canary.take())
    of = {"name": "polyrec_rollout_requests_total", "arm": "canary"}  # those that were compared meanwhile
    assert canary.failed + trial.client.metric(**of, outcome="failed") == 0
    answered = len(canary.took_s) + trial.client.metric(**of) - trial.client.metric(**of, outcome="failed")
    assert answered == (0 if waited_s else 2)
    trial.call("rollback")


@pytest.fixture
def other_ids(bundle: Bundle, tmp_path: Path) -> Path:
    """A bundle of the same schema, in which ids name other items."""
    old, item = bundle.encoder, bundle.encoder.vocabularies["item"]
    assert item.values is not None
    turned = replace(item, values=item.values[::-1])
    encoder = Encoder(old.schema, {**old.vocabularies, "item": turned}, old.standards)
    parts = (bundle.model(), bundle.manifest.representation, encoder, {}, {})
    return write_bundle(tmp_path / "table", *parts).path


@pytest.mark.parametrize(
    ("loaded", "answers"),
    [
        ("same", {"rank": True, "infer": True}),
        ("other_ids", {"rank": True, "infer": False}),
        ("other_schema", {"rank": False, "infer": False}),
    ],
)
def test_only_a_model_to_which_its_rows_mean_the_same_answers_what_a_canary_failed_to_answer(
    trial: Trial,
    plan_of: PlanOf,
    requests: list[Any],
    tensors: Callable[[Any], dict[str, Any]],
    bundle_dir: Path,
    shop_dir: Path,
    other_ids: Path,
    loaded: str,
    answers: dict[str, bool],
) -> None:
    """The rollout is rolled back and another plan loaded while the canary has the requests."""
    trial.start(plan_of(1.0), share=0.5, shadow=0)
    rollout = trial.engine.rollout
    assert rollout is not None
    rollout.split.share = 1.0
    inputs = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": "INT64" if array.dtype == np.int64 else "FP32",
            "data": array.ravel().tolist(),
        }
        for name, array in tensors(requests[0]).items()
    ]
    scope = {"type": "http", "headers": PATIENT}
    calls = {
        "rank": (Call(trial.engine, RankCodec(), scope), body_of(requests[0])),
        "infer": (Call(trial.engine, InferCodec(), scope), orjson.dumps({"inputs": inputs})),
    }
    folder = {"same": bundle_dir, "other_ids": other_ids, "other_schema": shop_dir}[loaded]

    async def submit() -> None:
        for call, body in calls.values():
            call.admit()
            call.submit(body)

    async def load_and_fail() -> None:
        trial.engine.load(single_path_plan(folder, "table", "torch"))
        retried = {endpoint: call.retry(Defect("broken")) for endpoint, (call, _) in calls.items()}
        assert {endpoint: found is not None for endpoint, found in retried.items()} == answers

    trial.client.runner.run(submit())
    trial.call("rollback")
    trial.client.runner.run(load_and_fail())


def test_requests_are_counted_by_the_address_of_their_client(
    trial: Trial, plan_of: PlanOf, requests: list[Any]
) -> None:
    """A verdict does not depend on the group of any one client."""
    trial.start(plan_of(1.0), share=0.5, shadow=0)
    rollout = trial.engine.rollout
    assert rollout is not None
    body = body_of(requests[0])

    async def ask(address: str) -> None:
        scope = {"type": "http", "headers": PATIENT, "client": (address, 50000)}
        call = Call(trial.engine, RankCodec(), scope)
        call.admit()
        call.reply(await call.answer(call.submit(body)))
        call.finish(200)

    def group_of(address: str) -> int:
        while True:  # until the answer is counted before the next comparison takes it
            rollout.stable.take(), rollout.canary.take()
            trial.client.runner.run(ask(address))
            arms = zip(rollout.stable.take(), rollout.canary.take(), strict=True)
            counts = [len(ArmRecords.joined(records).took_s) for records in arms]
            if sum(counts) == 1:
                return counts.index(1)

    assert group_of("10.0.0.1") == group_of("10.0.0.1") == group_of("::ffff:10.0.0.1")
    assert group_of("2001:db8:1::7") == group_of("2001:db8:1::8")
    assert len({group_of(f"10.0.0.{i}") for i in range(12)}) > 4
    trial.call("rollback")


def test_a_canary_that_misses_budgets_is_rolled_back_by_users(
    trial: Trial, plan_of: PlanOf, requests: list[Any]
) -> None:
    bounds = QUICK | {"max_failed": 0.01, "max_slowdown": 1.0, "slack_ms": 0.0}
    trial.start(plan_of(1.0), share=0.5, by="user_id", shadow=0, bounds=bounds)
    rollout = trial.engine.rollout
    assert rollout is not None
    (lane,) = rollout.canary.serving.lanes
    os.kill(lane.pid or 0, signal.SIGSTOP)
    try:
        while trial.engine.rollout is not None:
            trial.ask(requests[:50], headers={"x-latency-budget-ms": "2000"})
        assert "the canary failed" in trial.ended()["reason"]
    finally:
        os.kill(lane.pid or 0, signal.SIGCONT)


def rank(trial: Trial, request: Any, user: str, headers: dict[str, str] | None = None) -> Any:
    """The answer to a ranking for a user."""
    body = {"context": {**request.context, "user_id": user}, "candidates": request.candidates}
    return trial.client.send("POST", "/v1/rank", json=body, headers=headers)
