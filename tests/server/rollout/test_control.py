"""Rollouts of one engine: split, rollback by figures, promotion, and what a canary cannot do to others."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.tiers.updates.update import StoredTableUpdate, StoredUpdate
from polyrec.models.tiers.updates.update_log import UpdateLogError
from polyrec.planner.plan import Plan, load_plan, save_plan, single_path_plan
from polyrec.server.app.engine import Engine
from polyrec.server.app.logs import LineFormatter
from polyrec.server.errors import Defect
from polyrec.server.tiers.update_store import UpdateStore
from tests.server.conftest import administered
from tests.server.placing import ALLOWED
from tests.server.rollout.conftest import PATIENCE_S, QUICK, PlanOf, Trial


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
    # None: answered after the rollback
    assert {"stable", "canary"} <= set(arms(answers))
    assert ended["outcome"] == "rolled_back"
    assert ended["reason"].startswith("scores shifted: PSI")
    assert ended["decision"]["figures"]["psi_low"] > 0.1
    (line,) = [r for r in map(LineFormatter().format, caplog.records) if "rolled back: scores shifted" in r]
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


def test_a_rollback_while_the_version_is_opened_ends_the_rollout_before_it_begins(
    trial: Trial, plan_of: PlanOf, requests: list[Any]
) -> None:
    plan, headers = orjson.dumps({"plan": str(plan_of(1.0)), "share": 0.5}), {"headers": ALLOWED}
    start = "POST", "/v1/admin/rollout/start", headers | {"content": plan}
    share = "POST", "/v1/admin/rollout/share", headers | {"content": b'{"share": 0.1}'}
    rollback = "POST", "/v1/admin/rollout/rollback", headers | {"content": b'{"reason": "wrong plan"}'}
    started, early, ended = trial.client.together([start, share, rollback])
    assert (started.status_code, early.status_code, ended.status_code) == (409, 409, 200)
    assert "ended before it began: wrong plan" in started.json()["error"]
    assert "is being opened" in early.json()["error"]
    assert ended.json() == trial.status()
    assert ended.json()["rollout"] is None
    (outcome,) = ended.json()["ended"]
    assert (outcome["outcome"], outcome["reason"]) == ("rolled_back", "wrong plan")
    assert all("x-polyrec-arm" not in answer.headers for answer in trial.ask(requests[:20]))


@pytest.mark.parametrize("page", ["promote", "rollback", "share"])
def test_without_a_rollout_there_is_nothing_to_end(trial: Trial, page: str) -> None:
    answer = trial.call(page, **({"share": 0.1} if page == "share" else {}))
    assert answer.status_code == 409
    assert "there is no rollout of model 'trivago'" in answer.json()["error"]
    assert "polyrec rollout rollback --previous returns to the plan" in answer.json()["error"]
    assert trial.status() == {"model": "trivago", "rollout": None, "ended": []}


@pytest.mark.parametrize("page", ["promote", "rollback", "share"])
def test_a_server_that_loads_does_not_say_that_a_rollout_can_be_started(client: Any, page: str) -> None:
    engine = Engine()
    loading = Trial(administered(client, engine), engine)
    answer = loading.call(page, **({"share": 0.1} if page == "share" else {}))
    assert answer.status_code == 503
    assert "still loading" in answer.json()["error"]


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


def test_the_status_tells_what_a_promotion_changes(
    trial: Trial, plan: Plan, plan_of: PlanOf, tmp_path: Path
) -> None:
    """The bundle of a version is one path: its promotion left a server of two with one, without a word."""
    path = plan.paths[0].model_copy(update={"bundle": plan.paths[0].bundle.absolute()})
    paths = path, path.model_copy(update={"name": "other@cpu"})
    save_plan(plan.model_copy(update={"paths": paths}), tmp_path / "plan.json")
    reload = orjson.dumps({"plan": str(tmp_path / "plan.json")})
    assert trial.client.post("/v1/admin/reload", reload, ALLOWED).status_code == 200
    told = trial.start(plan_of(1.0))["rollout"]["changes"]
    assert told[0] == f"fewer paths: {path.name}, were {path.name}, other@cpu"


def test_another_schema_is_refused_before_anything_is_opened(
    trial: Trial, shop_dir: Path, tmp_path: Path, plan_of: PlanOf
) -> None:
    text = plan_of(1.0).read_text()
    document = orjson.loads(text)
    # no lane of this path can be opened
    document["paths"][0] |= {"bundle": str(shop_dir), "runtime": "torch", "device": "cuda:63"}
    (tmp_path / "plan.json").write_bytes(orjson.dumps(document))
    answer = trial.call("start", plan=str(tmp_path / "plan.json"))
    assert answer.status_code == 422
    assert "has schema 'trivago', the canary schema 'shop'" in answer.json()["error"]


@pytest.mark.long
def test_logs_of_updates_are_closed_when_nothing_serves_their_version_any_more(
    trial: Trial, plan: Plan, plan_of: PlanOf, shop_dir: Path, tmp_path: Path
) -> None:
    """The log of a version that is rolled back, or that is not opened at all."""
    store = trial.engine.update_store
    store.in_memory, store.log_folder = True, tmp_path / "logs"

    def logs() -> int:
        return len(list((tmp_path / "logs").glob("*.updates")))

    async def load() -> None:
        trial.engine.load(plan)

    async def all_but_one_closed() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while logs() > 1:
                await asyncio.sleep(0.01)

    run = trial.client.runner.run
    run(load())
    assert logs() == 1
    for _ in range(2):
        trial.start(plan_of(0.5))
        assert logs() == 2
        trial.call("rollback")
        run(all_but_one_closed())
    save_plan(single_path_plan(shop_dir, "table", "torch"), tmp_path / "shop.json")
    assert trial.call("start", plan=str(tmp_path / "shop.json")).status_code == 422
    assert logs() == 1
    trial.start(plan_of(0.5))
    trial.call("rollback")
    trial.start(plan_of(0.5))  # before the first one is closed
    assert trial.call("promote").status_code == 200
    assert logs() == 2  # a rollback may serve the other one again


def test_the_log_of_a_version_that_was_only_tried_stays(
    trial: Trial, plan: Plan, plan_of: PlanOf, tmp_path: Path
) -> None:
    """The end of a trial removed the updates that an earlier server of that version had acknowledged."""
    store, earlier = trial.engine.update_store, UpdateStore()
    store.in_memory, store.log_folder = True, tmp_path / "logs"
    earlier.log_folder = store.log_folder
    bundle = load_bundle(load_plan(plan_of(0.5)).paths[0].bundle)
    row = np.zeros((1, 4 * bundle.shape.width), np.uint8)
    earlier.changes_of(bundle, "cpu", tmp_path).apply(
        StoredUpdate({"item": StoredTableUpdate(np.zeros(1, np.int64), row)})
    )
    earlier.close()

    async def load() -> None:
        trial.engine.load(plan)

    async def rows_once_closed() -> int:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(UpdateLogError):  # while it is in use
                    return earlier.changes_of(bundle, "cpu", tmp_path).rows
                await asyncio.sleep(0.01)

    trial.client.runner.run(load())
    trial.start(plan_of(0.5))
    trial.call("rollback")
    assert trial.client.runner.run(rows_once_closed()) == 1
    earlier.close()


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


@pytest.mark.parametrize("share", [False, "0.1", None])
def test_a_share_of_another_type_is_invalid_before_there_is_a_rollout(trial: Trial, share: Any) -> None:
    answer = trial.call("share", share=share)
    assert (answer.status_code, "share" in answer.json()["error"]) == (422, True)
