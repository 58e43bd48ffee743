"""Admin calls: their effects, their authorization, and that invalid ones change nothing."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from polyrec.models import memory
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.planner.plan import Plan, PlannedPath, load_plan, save_plan, single_path_plan
from polyrec.server.access.access import Access
from polyrec.server.access.rates import GUESS_BURST
from polyrec.server.app.engine import Engine
from polyrec.server.app.settings.settings import Settings
from polyrec.server.http.admin import Admin
from polyrec.server.http.app import create_app
from polyrec.server.source.model_source import ModelSource

TOKEN = "a token of sixteen and more"
ALLOWED = {"authorization": f"Bearer {TOKEN}"}
BODY = b'{"instances": [{}]}'


@pytest.fixture(scope="module")
def of_both(plan: Plan, bundle_dir: Path) -> Plan:
    """A plan of two paths."""
    second = PlannedPath(name="table-onnx@cpu", bundle=bundle_dir, runtime="onnx")
    limits = plan.limits.model_copy(update={"max_budget_ms": 100_000.0})
    return plan.model_copy(update={"paths": (*plan.paths, second), "limits": limits})


@pytest.fixture
def both(of_both: Plan) -> Iterator[Engine]:
    engine = Engine()
    engine.load(of_both)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def kept(of_both: Plan) -> Iterator[Engine]:
    """An engine for calls that change nothing."""
    engine = Engine()
    engine.load(of_both)
    yield engine
    engine.close()


@pytest.fixture
def refusing(client: Any, kept: Engine) -> Any:
    """A client of `kept`, which can be administered; guesses of other tests do not count."""
    kept.access = Access(kept.metrics, admin_token=TOKEN)
    return type(client)(client.runner, create_app(kept, Admin(kept)))


@pytest.fixture
def admin(client: Any, both: Engine) -> Any:
    """A client of an engine of two paths, which can be administered."""
    both.access = Access(both.metrics, admin_token=TOKEN)
    return type(client)(client.runner, create_app(both, Admin(both)))


def act(admin: Any, page: str, body: bytes = b"{}", headers: dict[str, str] = ALLOWED) -> Any:
    return admin.post(f"/v1/admin/{page}", body, headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Bearer another one"}, 401),
        ({"authorization": f"Bearer {TOKEN}x"}, 401),
    ],
)
@pytest.mark.parametrize("page", ["reload", "rollback", "drain", "routing", "note"])
def test_without_the_token_nothing_is_allowed(
    refusing: Any, page: str, headers: dict[str, str], status: int
) -> None:
    answer = act(refusing, page, headers=headers)
    assert answer.status_code == status
    assert TOKEN not in answer.text
    assert ("www-authenticate" in answer.headers) == (status == 401)
    assert refusing.send("GET", "/readyz").status_code == 200


def test_the_admin_token_cannot_be_guessed_at_speed(admin: Any, caplog: pytest.LogCaptureFixture) -> None:
    answers = [
        act(admin, "drain", headers={"authorization": f"Bearer guess-{i:016}"})
        for i in range(5 * GUESS_BURST)
    ]
    assert [answer.status_code for answer in answers[:GUESS_BURST]] == [401] * GUESS_BURST
    limited = [answer for answer in answers if answer.status_code == 429]
    assert limited[0].headers["retry-after"] == "1"
    assert admin.metric("polyrec_access_refused_total", reason="guessing") == len(limited)
    lines = [record for record in caplog.records if record.name == "polyrec.access"]
    assert 0 < len(lines) < len(answers)
    assert admin.send("GET", "/readyz").status_code == 200


def test_a_server_without_a_token_has_no_admin(admin: Any, both: Engine) -> None:
    both.access = Access(both.metrics)
    bare = type(admin)(admin.runner, create_app(both))
    answer = act(bare, "drain")
    assert answer.status_code == 403
    assert "POLYREC_ADMIN_TOKEN" in answer.json()["error"]


def test_the_policy_can_be_changed_and_answers_follow(admin: Any) -> None:
    for name in ("table-onnx@cpu", "table@cpu"):
        assert act(admin, "routing", f'{{"policy": "static:{name}"}}'.encode()).status_code == 200
        assert admin.post("/v1/predict", BODY).headers["x-polyrec-path"] == name
    answer = act(admin, "routing", b'{"policy": "priced", "weights": {"table@cpu": 0}}')
    assert answer.json()["weights"] == {"table@cpu": 0}
    assert admin.post("/v1/predict", BODY).headers["x-polyrec-path"] == "table-onnx@cpu"


def test_the_default_budget_can_be_changed(admin: Any) -> None:
    assert act(admin, "routing", b'{"default_budget_ms": 0.000001}').json()["default_budget_ms"] == 1e-6
    assert admin.post("/v1/predict", BODY).status_code == 504


def test_the_plan_in_force_shows_the_changes_until_the_next_plan(
    admin: Any, both: Engine, of_both: Plan
) -> None:
    body = b'{"weights": {"table@cpu": 0}, "default_budget_ms": 7}'
    assert act(admin, "routing", body).status_code == 200
    shown = admin.send("GET", "/v1/plan").json()
    assert (shown["routing"]["weights"], shown["default_budget_ms"]) == ({"table@cpu": 0}, 7)
    both.load(of_both)
    assert admin.send("GET", "/v1/plan").json()["routing"]["weights"] == {}
    assert both.previous is not None
    assert both.previous.plan == of_both


def test_another_default_budget_shows_in_the_metrics_and_moves_the_cap(
    admin: Any, both: Engine, plan: Plan
) -> None:
    both.load(plan)  # without a cap of its own
    assert act(admin, "routing", b'{"default_budget_ms": 50000}').status_code == 200
    assert admin.metric("polyrec_default_budget_seconds") == 50
    answer = admin.send("GET", "/v1/route?rows=1&budget_ms=400000")
    assert answer.json()["budget_s"] == 400


@pytest.mark.parametrize(
    ("page", "body", "status", "message"),
    [
        ("routing", b'{"policy": "greedy"}', 422, "policy"),
        ("routing", b'{"policy": "static:nowhere@cpu"}', 422, "nowhere@cpu"),
        ("routing", b'{"weights": {"nowhere@cpu": 1}}', 422, "nowhere@cpu"),
        ("routing", b'{"weights": {"table@cpu": -1}}', 422, "weights"),
        ("routing", b'{"weights": {"table@cpu": 5e-324}}', 422, "is neither 0, which disables a path, nor"),
        ("routing", b'{"default_budget_ms": 0}', 422, "default_budget_ms"),
        ("routing", b'{"budget": 1}', 422, "budget"),
        ("routing", b"{", 400, "JSON"),
        ("routing", b"[]", 422, 'Input should be a valid dictionary"'),
        ("routing", b'{"weights": {"table@cpu": 0, "table-onnx@cpu": 0}}', 422, "no path would answer"),
        (
            "routing",
            b'{"policy": "static:table@cpu", "weights": {"table@cpu": 0}}',
            422,
            "no path would answer",
        ),
        ("routing", b'{"default_budget_ms": 1e308}', 422, "default_budget_ms"),
        ("routing", b'{"default_budget_ms": 200000}', 422, "max_budget_ms 100000 is below"),
        ("reload", b'{"plan": "a\\u0000b"}', 422, "null byte"),
        ("reload", b'{"plan": "/no/such/plan.json"}', 422, "no plan file"),
        ("reload", b'{"plan": "/dev/zero"}', 422, "cannot read plan 'zero': it is not a regular file"),
        ("reload", b'{"plan": "/dev"}', 422, "cannot read plan '/dev': it is not a regular file"),
        ("reload", b"{}", 422, "name a plan"),
        ("rollback", b"{}", 422, "no earlier plan"),
        ("drain", b'{"now": true}', 422, "now"),
        ("note", b"{}", 422, "text"),
        ("note", b'{"text": "%s"}' % (b"x" * 501), 422, "text"),
    ],
)
def test_an_invalid_call_changes_nothing(
    refusing: Any, kept: Engine, page: str, body: bytes, status: int, message: str
) -> None:
    before = kept.serving, kept.routing, kept.default_budget_s
    answer = act(refusing, page, body)
    assert answer.status_code == status
    assert message in answer.text
    assert (kept.serving, kept.routing, kept.default_budget_s) == before
    assert refusing.post("/v1/predict", BODY).status_code == 200


def test_a_pipe_or_an_endless_file_is_not_read_as_a_plan(admin: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    os.mkfifo(file)
    for message in ("it is not a regular file", "it has more than 4194304 bytes"):
        answer = act(admin, "reload", f'{{"plan": "{file}"}}'.encode())
        assert answer.status_code == 422
        assert answer.json()["error"].endswith(f"cannot read plan '{file.name}': {message}")
        file.unlink()
        file.touch()
        os.truncate(file, 2**40)


def test_a_plan_is_reloaded_and_rolled_back(admin: Any, both: Engine, plan: Plan, tmp_path: Path) -> None:
    path = plan.paths[0].model_copy(update={"name": "other@cpu", "bundle": plan.paths[0].bundle.absolute()})
    save_plan(plan.model_copy(update={"paths": (path,)}), tmp_path / "plan.json")
    answer = act(admin, "reload", f'{{"plan": "{tmp_path / "plan.json"}"}}'.encode())
    assert answer.json()["paths"] == ["other@cpu"]
    assert admin.post("/v1/predict", BODY).headers["x-polyrec-path"] == "other@cpu"
    assert act(admin, "rollback").json()["paths"] == ["table@cpu", "table-onnx@cpu"]
    assert admin.post("/v1/predict", BODY).headers["x-polyrec-path"] in ("table@cpu", "table-onnx@cpu")


def test_a_plan_for_which_there_is_too_little_memory_is_refused(
    admin: Any, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the kernel would kill the server for opening it."""
    save_plan(plan, tmp_path / "plan.json")
    (tmp_path / "meminfo").write_text("MemAvailable: 1 kB\nSwapFree: 0 kB\n")
    monkeypatch.setattr(memory, "PROC", tmp_path)
    monkeypatch.setattr(memory, "MIN_CHECKED", 1000)
    answer = admin.post(
        "/v1/admin/reload", json.dumps({"plan": str(tmp_path / "plan.json")}).encode(), ALLOWED
    )
    assert answer.status_code == 422
    assert "the old one is still served: not enough memory" in answer.json()["error"]
    assert admin.post("/v1/predict", BODY).status_code == 200


def test_a_reload_says_what_clients_notice(
    admin: Any, plan: Plan, shop_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = plan.paths[0].model_copy(update={"bundle": plan.paths[0].bundle.absolute(), "quality": 0.5})
    file = tmp_path / "plan.json"
    said = []
    with caplog.at_level(logging.WARNING):
        for changed in (
            path,
            path.model_copy(update={"quality": 0.125}),
            path.model_copy(update={"quality": 0.12500001}),
            single_path_plan(shop_dir, "shop", "torch").paths[0],
        ):
            save_plan(plan.model_copy(update={"paths": (changed,)}), file)
            said.append(act(admin, "reload", f'{{"plan": "{file}"}}'.encode()).json()["changes"])
    assert said[0][0] == "fewer paths: table@cpu, were table@cpu, table-onnx@cpu"
    assert said[0][1].startswith("quality of the best path: 0.5, was ")
    assert said[1] == ["quality of the best path: 0.125, was 0.5"]
    assert said[2] == []
    assert said[3][0] == "model: shop, was trivago"
    assert said[3][1].startswith("no longer allowed in requests: ")
    assert said[3][2] == "new in requests: buyer, fruit, weight"
    assert "; quality of the best path: 0.125, was 0.5" in caplog.text


def test_every_change_is_in_the_log(
    admin: Any, plan: Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = tuple(p.model_copy(update={"bundle": p.bundle.absolute()}) for p in plan.paths)
    save_plan(plan.model_copy(update={"paths": paths}), tmp_path / "plan.json")
    named = json.dumps({"plan": str(tmp_path / "plan.json")}).encode()
    with caplog.at_level(logging.WARNING):
        for page, body in (("reload", named), ("rollback", b"{}"), ("reload", b'{"plan": "/none"}')):
            act(admin, page, body)
        act(admin, "routing", b'{"policy": "static:table@cpu"}')
        act(admin, "drain")
    lines = [r.getMessage() for r in caplog.records if r.name == "polyrec.admin"]
    assert [line.split(":")[0] for line in lines] == [
        "new plan served",
        "new plan served",
        "a plan was not loaded, the old one is still served",
        "routing is changed",
        "draining, as /v1/admin/drain was called",
    ]
    assert "table@cpu, table-onnx@cpu, bundle version" in lines[1]
    assert "static:table@cpu" in lines[3]


def test_draining_is_seen_by_readiness_and_still_answers(admin: Any) -> None:
    assert act(admin, "drain").json() == {"state": "draining"}
    assert admin.send("GET", "/readyz").status_code == 503
    assert admin.post("/v1/predict", BODY).status_code == 200


def test_a_note_is_shown_without_folders_and_control_characters(admin: Any) -> None:
    answer = act(admin, "note", b'{"text": "loop: written to \'/data/loop/plan.json\'\\u001b[2J"}')
    assert answer.status_code == 200
    text = answer.json()["text"]
    assert "/data" not in text
    assert "plan.json" in text
    assert "\x1b" not in text
    events = admin.send("GET", "/v1/status").json()["events"]
    assert [(event["kind"], event["text"]) for event in events] == [("note", text)]


def test_a_hypothetical_request_is_explained(admin: Any) -> None:
    answer = admin.send("GET", "/v1/route?rows=23&budget_ms=50&quality=required")
    assert answer.status_code == 200
    assert answer.json()["path"] in ("table@cpu", "table-onnx@cpu")
    for query, message in (
        ("rows=0", "rows"),
        ("rows=many", "rows"),
        ("budget_ms=nan", "budget_ms"),
        ("budget_ms=1e308", "3600000 (an hour) at most"),
        ("quality=best", "quality"),
        ("row=1", "unknown parameter 'row'"),
    ):
        answer = admin.send("GET", f"/v1/route?{query}")
        assert answer.status_code == 400
        assert message in answer.json()["error"]


def scaled(bundle: Bundle, folder: Path, factor: float) -> Path:
    """A bundle in place of `folder` whose answers differ, by other weights."""
    model = deepcopy(bundle.model())
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.mul_(factor)
    parts = (bundle.manifest.representation, bundle.encoder, {}, {})
    return write_bundle(folder, model, *parts, replace=folder.exists()).path


def test_rollback_restores_the_old_model_although_its_files_were_replaced(
    client_of: Any, plan: Plan, bundle: Bundle, tmp_path: Path
) -> None:
    folder = scaled(bundle, tmp_path / "table", 1.0)
    file = tmp_path / "plan.json"
    path = plan.paths[0].model_copy(update={"bundle": folder})
    save_plan(plan.model_copy(update={"paths": (path,)}), file)
    admin = client_of(load_plan(file))

    def answers() -> Any:
        return admin.post("/v1/predict", BODY).json()["predictions"]

    first = answers()
    for factor in (0.5, 0.25):  # the second time from what a rollback had opened
        scaled(bundle, folder, factor)
        act(admin, "reload", json.dumps({"plan": str(file)}).encode())
        assert answers() != pytest.approx(first, abs=1e-6)
        assert act(admin, "rollback").status_code == 200
        assert answers() == pytest.approx(first, abs=1e-6)


def test_a_reload_by_name_keeps_the_operators_settings(
    client: Any, plan: Plan, bundle_dir: Path, tmp_path: Path
) -> None:
    path = plan.paths[0].model_copy(update={"bundle": bundle_dir.absolute()})
    save_plan(plan.model_copy(update={"paths": (path,)}), tmp_path / "plan.json")
    settings = Settings(plan=tmp_path / "plan.json", max_body_bytes=1000, default_budget_ms=30_000)
    engine = Engine()
    source = ModelSource(settings)
    engine.load(*source.read())
    engine.access = Access(engine.metrics, admin_token=TOKEN)
    admin = type(client)(client.runner, create_app(engine, Admin(engine, source.read)))
    for body in (b"{}", json.dumps({"plan": str(tmp_path / "plan.json")}).encode()):
        assert act(admin, "reload", body).status_code == 200
        assert engine.plan.limits.max_body_bytes == 1000
        assert engine.default_budget_s == 30
        assert admin.post("/v1/predict", b" " * 2000).status_code == 413
    engine.close()


def test_no_plan_is_loaded_before_the_first_one_is(client: Any, plan: Plan, tmp_path: Path) -> None:
    """The bundle of the start would replace it when it has loaded."""
    save_plan(plan, tmp_path / "plan.json")
    engine = Engine()
    engine.access = Access(engine.metrics, admin_token=TOKEN)
    admin = type(client)(client.runner, create_app(engine, Admin(engine)))
    body = json.dumps({"plan": str(tmp_path / "plan.json")}).encode()
    for name, arguments in (("reload", body), ("rollback", b"{}")):
        answer = act(admin, name, arguments)
        assert answer.status_code == 503
        assert "still loading" in answer.json()["error"]
