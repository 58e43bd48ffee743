"""Rollouts of one engine: split, rollback by figures, promotion, and what a canary cannot do to others."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.routing.admission.arrival import Arrival
from polyrec.server.app.logs import Lines
from polyrec.server.dispatch.dispatcher import clock
from polyrec.server.errors import Defect
from polyrec.server.http.call import Call
from polyrec.server.http.predictions import RankCodec
from tests.server.placing import ALLOWED
from tests.server.rollout.conftest import Trial

PlanOf = Callable[[float], Path]
QUICK = {"min_requests": 100, "max_failed": 1.0, "max_late": 1.0, "max_slowdown": 1000.0, "slack_ms": 1e5}
"""Judges scores after 100 requests, and no time: the machine may be busy."""


def arms(answers: list[Any]) -> Counter[str | None]:
    assert {answer.status_code for answer in answers} == {200}
    return Counter(answer.headers.get("x-polyrec-arm") for answer in answers)


def test_a_user_gets_one_version_and_the_share_is_kept(
    trial: Trial, plan_of: PlanOf, requests: list[Any]
) -> None:
    trial.start(plan_of(1.0), share=0.3, by="user_id")
    first, again = trial.ask(requests, 5), trial.ask(requests, 5)
    found = arms(first)
    assert found["canary"] == pytest.approx(0.3 * len(first), abs=0.15 * len(first))
    assert set(found) == {"canary", "stable"}
    assert [a.headers["x-polyrec-arm"] for a in first] == [a.headers["x-polyrec-arm"] for a in again]
    trial.call("share", share=0.5)
    more = trial.ask(requests, 5)
    before, now = ([a.headers["x-polyrec-arm"] == "canary" for a in answers] for answers in (first, more))
    assert sum(before) < sum(now)
    assert all(still for still, was in zip(now, before, strict=True) if was)
    trial.call("rollback")


def test_answers_are_of_the_version_that_they_name(
    trial: Trial, plan_of: PlanOf, request_: Any, offline: Callable[[Any], Any]
) -> None:
    trial.start(plan_of(0.5), share=0.5)
    body = orjson.dumps({"columns": request_.columns})
    for answer in (trial.client.post("/v1/predict", body) for _ in range(8)):
        is_own = np.allclose(answer.json()["predictions"], offline(request_), atol=1e-5)
        assert is_own == (answer.headers["x-polyrec-arm"] == "stable")
    trial.call("rollback")
    assert "x-polyrec-arm" not in trial.client.post("/v1/predict", body).headers


def test_shifted_scores_are_rolled_back_without_labels(
    trial: Trial, plan_of: PlanOf, requests: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    trial.start(plan_of(0.3), share=0.5, bounds=QUICK)
    answers = trial.ask(requests, 400 // len(requests))
    ended = trial.ended()
    assert len(arms(answers)) == 2
    assert ended["outcome"] == "rolled_back"
    assert ended["reason"].startswith("scores shifted: PSI")
    assert ended["decision"]["figures"]["psi_low"] > 0.1
    (line,) = [r for r in map(Lines().format, caplog.records) if "rolled back: scores shifted" in r]
    assert orjson.loads(line.partition(" figures=")[2])["psi_low"] > 0.1
    assert trial.client.metric("polyrec_rollouts_total", outcome="rolled_back") == 1
    assert trial.client.metric("polyrec_rollout_share") == 0
    assert "scores shifted" in trial.client.send("GET", "/v1/status").text
    assert arms(trial.ask(requests[:10])) == {None: 10}


def test_a_good_version_is_promoted_by_itself(trial: Trial, plan_of: PlanOf, requests: list[Any]) -> None:
    bounds = QUICK | {"promote_after_s": 0.5, "max_psi": 0.5}
    began = trial.start(plan_of(1.0), share=0.5, shadow=0, bounds=bounds)
    canary = began["rollout"]["canary_version"]
    old = trial.engine.serving
    answers = trial.ask(requests, 400 // len(requests))
    ended = trial.ended()
    assert {answer.status_code for answer in answers} == {200}
    assert (ended["outcome"], ended["reason"]) == ("promoted", "all bounds are shown to hold")
    assert trial.engine.serving is not old
    assert trial.engine.serving.version == canary
    assert [lane.kind for lane in trial.engine.serving.lanes] == ["inline"]
    assert trial.client.metric("polyrec_rollout_requests_total", arm="canary", outcome="ok") > 100


def test_a_promotion_waits_while_something_else_changes_what_is_served(
    trial: Trial, plan_of: PlanOf, requests: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    bounds = QUICK | {"promote_after_s": 0.5, "max_psi": 0.5}
    trial.start(plan_of(1.0), share=0.5, shadow=0, bounds=bounds)
    run, changing = trial.client.runner.run, AsyncExitStack()
    run(changing.enter_async_context(trial.engine.changing()))
    while trial.engine.rollout is not None and "not promoted yet" not in caplog.text:
        trial.ask(requests[:100])
    run(changing.aclose())
    assert trial.ended()["outcome"] == "promoted"


def test_promotion_by_call_and_then_back(trial: Trial, plan_of: PlanOf, requests: list[Any]) -> None:
    first = trial.engine.serving.version
    canary = trial.start(plan_of(0.5), share=0.1)["rollout"]["canary_version"]
    rollout = trial.status()["rollout"]
    assert "/" not in rollout["plan"]  # no folder of the server
    ended = trial.call("promote", reason="ticket 7\nin /home/me/notes").json()["ended"][0]
    assert ended["reason"] == "ticket 7\\nin notes"
    assert trial.engine.serving.version == canary
    answer = trial.client.post("/v1/admin/rollback", b"{}", ALLOWED)
    assert answer.json()["bundle_version"] == first


def test_a_canary_whose_lane_dies_is_rolled_back_and_no_request_is_lost(
    trial: Trial, plan_of: PlanOf, requests: list[Any]
) -> None:
    trial.start(plan_of(1.0), share=0.5)
    rollout = trial.engine.rollout
    assert rollout is not None
    (lane,) = rollout.canary.serving.lanes
    assert lane.kind == "process"
    assert os.getpriority(os.PRIO_PROCESS, lane.pid or 0) == 19
    os.kill(lane.pid or 0, signal.SIGKILL)
    answers = trial.ask(requests, 4)
    assert not [answer.text for answer in answers if answer.status_code != 200]
    ended = trial.ended()
    assert ended["outcome"] == "rolled_back"
    assert "a lane of the canary died" in ended["reason"]


def test_the_stable_version_answers_requests_that_the_canary_rejects(
    trial: Trial, plan_of: PlanOf, requests: list[Any]
) -> None:
    trial.start(plan_of(1.0), share=0.5)
    rollout = trial.engine.rollout
    assert rollout is not None
    for lane in range(len(rollout.canary.serving.lanes)):
        rollout.canary.serving.dispatcher.router.lane_down(lane, 0.0)
    # the first refusals may be excused: the canary's new processes waited for a processor
    answers = trial.ask_until_ended(requests)
    assert {answer.status_code for answer in answers} == {200}
    ended = trial.ended()
    assert "the canary failed" in ended["reason"]
    assert ended["decision"]["figures"]["stable"]["failed"] == 0


def test_reload_and_another_rollout_are_refused_meanwhile(trial: Trial, plan_of: PlanOf) -> None:
    trial.start(plan_of(1.0))
    for page in ("reload", "rollback", "rollout/start"):
        body = orjson.dumps({"plan": str(plan_of(0.5))}) if page != "rollback" else b"{}"
        answer = trial.client.post(f"/v1/admin/{page}", body, ALLOWED)
        assert answer.status_code == 409
        assert "is in progress; promote it or roll it back first" in answer.json()["error"]
    assert trial.status()["rollout"]["lanes_alive"] == 1
    trial.call("rollback")
    assert trial.client.post("/v1/admin/reload", body, ALLOWED).status_code == 200


@pytest.mark.parametrize("page", ["promote", "rollback", "share"])
def test_without_a_rollout_there_is_nothing_to_end(trial: Trial, page: str) -> None:
    answer = trial.call(page, **({"share": 0.1} if page == "share" else {}))
    assert answer.status_code == 409
    assert "there is no rollout of model 'trivago'" in answer.json()["error"]
    assert "/v1/admin/rollback serves what was served before the last promotion" in answer.json()["error"]
    assert trial.status() == {"model": "trivago", "rollout": None, "ended": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"plan": "/no/such/plan.json"}, "no plan file"),
        ({"by": "item_id"}, "no single-valued context feature"),
        ({"by": "header:"}, "the header has no name"),
        ({"share": 0.9}, "share"),
        ({"bounds": {"max_psi": -1}}, "max_psi"),
        ({"speed": 1}, "speed"),
    ],
)
def test_an_invalid_start_changes_nothing(
    trial: Trial, plan_of: PlanOf, arguments: dict[str, Any], message: str
) -> None:
    answer = trial.call("start", **({"plan": str(plan_of(1.0))} | arguments))
    assert answer.status_code == 422
    assert message in answer.json()["error"]
    assert trial.engine.rollout is None


def test_another_schema_is_refused(trial: Trial, shop_dir: Path, tmp_path: Path, plan_of: PlanOf) -> None:
    text = plan_of(1.0).read_text()
    document = orjson.loads(text)
    document["paths"][0]["bundle"] = str(shop_dir)
    (tmp_path / "plan.json").write_bytes(orjson.dumps(document))
    answer = trial.call("start", plan=str(tmp_path / "plan.json"))
    assert answer.status_code == 422
    assert "has schema 'trivago', the version under trial schema 'shop'" in answer.json()["error"]


def test_a_server_that_ends_closes_the_canary(
    trial: Trial, plan_of: PlanOf, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trial.start(plan_of(1.0))
        rollout = trial.engine.rollout
        assert rollout is not None
        trial.engine.close()
    assert not any(lane.alive for lane in rollout.canary.serving.lanes)


def test_a_shadow_is_compared_and_never_answers(
    trial: Trial, plan_of: PlanOf, requests: list[Any], offline: Callable[[Any], Any]
) -> None:
    trial.start(plan_of(0.5), share=0, shadow=1, bounds={"min_requests": 10})
    answers = []
    while trial.engine.rollout is not None:
        found = trial.client.send("POST", "/v1/predict", json={"columns": requests[0].columns})
        if found.headers.get("x-polyrec-arm") != "stable":
            break
        answers.append(found.json()["predictions"])
    assert np.allclose(answers, offline(requests[0]), atol=1e-5)
    ended = trial.ended()
    assert ended["reason"].startswith("scores of the same requests differ: expected loss of information")
    assert ended["decision"]["figures"]["canary"]["requests"] == 0
    assert ended["decision"]["figures"]["pairs"] >= 10


def test_a_shadow_that_fails_is_rolled_back(trial: Trial, plan_of: PlanOf, requests: list[Any]) -> None:
    trial.start(plan_of(1.0), share=0, shadow=1)
    rollout = trial.engine.rollout
    assert rollout is not None
    rollout.canary.serving.dispatcher.fail_all(Defect("broken"))
    while trial.engine.rollout is not None:
        assert trial.client.predict(requests[0])["path"] == "table@cpu"
    assert "as a shadow" in trial.ended()["reason"]


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
def test_what_passed_before_a_request_was_read_is_not_the_canarys(
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


@pytest.mark.parametrize("share", [False, "0.1", None])
def test_a_share_of_another_type_is_invalid_before_there_is_a_rollout(trial: Trial, share: Any) -> None:
    answer = trial.call("share", share=share)
    assert (answer.status_code, "share" in answer.json()["error"]) == (422, True)
