"""A plan's placement as the server opens it: the same answers from wherever the rows lie."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import torch

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.reserve import reserve
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.schema.batch import F32
from polyrec.models.tiers.updates.update import TableUpdate, apply_update
from polyrec.planner.plan import Plan, PlanError, PlannedPath, save_plan, single_path_plan
from polyrec.planner.profile import Profile, save_profile
from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from tests.forking import start
from tests.models.tiers.redis_server import RedisServer
from tests.planner.planning import machine, path
from tests.server.conftest import Client, Request
from tests.server.placing import ALLOWED, an_eighth, placed_plan


@pytest.mark.parametrize("lane", ["inline", "thread", "process"])
def test_answers_are_those_of_the_flat_table_to_the_bit(
    lane: str,
    client_of: Callable[[Plan], Client],
    paged: Bundle,
    requests: list[Request],
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    client = client_of(placed_plan(paged, tmp_path, lane=lane))
    assert client.metric("polyrec_embedding_lookups_total", tier="host") == 0
    for request in requests[:20]:
        given = client.predict(request)
        assert given["reason"] is None
        np.testing.assert_allclose(
            np.array(given["predictions"], np.float32), whole(request), rtol=0, atol=1e-6
        )
    assert client.metric("polyrec_embedding_lookups_total", tier="disk") > 0
    by_table = [
        client.metric(f"polyrec_embedding_table_{n}_total", table="item") for n in ("lookups", "hits")
    ]
    assert by_table[0] >= by_table[1] > 0
    looked_up = client.metric("polyrec_embedding_lookups_total", tier="host")
    assert looked_up >= sum(r.table.num_rows for r in requests[:20])
    status = client.send("GET", "/v1/status").json()
    assert status["now"]["tiers"]["host"][0] == looked_up
    assert 0 < status["now"]["tiers"]["host"][1] < looked_up


def answered(http: httpx.Client | Client, page: str, content: object) -> dict[str, Any]:
    """Returns an answer but for its quality: that of the profiles here is not the bundle's."""
    answer: dict[str, Any] = http.post(f"/v1/{page}", content=orjson.dumps(content)).json()
    del answer["quality"]
    return answer


@pytest.fixture
def in_memory(client_of: Callable[[Plan], Client], paged: Bundle) -> Client:
    """A client of `paged` with all rows in memory."""
    plan = single_path_plan(paged.path, "table", "onnx")
    return client_of(plan.model_copy(update={"default_budget_ms": 60_000.0}))


def test_a_planned_server_below_the_bundles_size_answers_as_one_with_all_in_memory(
    in_memory: Client,
    paged: Bundle,
    requests: list[Request],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = {t: 256 * v.rows for t, v in paged.encoder.vocabularies.items()}
    one = path("table@cpu", bundle=paged.path, tables=rows, origin="measured")
    save_profile(Profile(machine=machine(disk=True), paths=(one,)), tmp_path / "profile.json")
    memory = 1000 + sum(rows.values()) // 2
    given = ["plan", "--profile", str(tmp_path / "profile.json"), "--slo-ms", "2000"]
    given += ["--traffic", "rate=2,sizes=fixed:5", "--memory", f"cpu={memory}"]
    assert main([*given, "--out", str(tmp_path / "plan.json"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    held = sum(t["host"] for t in plan["placement"]["paths"][0]["tables"].values())
    assert 0 < 256 * held + plan["placement"]["paths"][0]["cache_bytes"] <= memory
    quiet = {"drain_grace_s": 0, "default_budget_ms": 60_000}
    with (
        start({"plan": tmp_path / "plan.json", "tier_directory": tmp_path} | quiet) as placed,
        httpx.Client(base_url=placed.url, timeout=60) as http,
    ):
        for request in requests[:30]:
            body = {"context": request.context, "candidates": request.candidates}
            for page, content in (("rank", body), ("predict", {"columns": request.columns})):
                assert answered(http, page, content) == answered(in_memory, page, content)
        counted = http.get("/metrics").text
    assert 'polyrec_embedding_read_bytes_total{tier="disk"}' in counted
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".pages"]


@pytest.mark.long
def test_a_plan_of_memory_disk_and_a_named_store_opens_and_answers_as_one_with_all_in_memory(
    in_memory: Client,
    paged: Bundle,
    requests: list[Request],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = RedisServer(tmp_path)
    rows = {t: 256 * v.rows for t, v in paged.encoder.vocabularies.items()}
    one = path("table@cpu", bundle=paged.path, tables=rows, origin="measured")
    on = machine(disk=True, remote=store.url)
    save_profile(Profile(machine=on, paths=(one,)), tmp_path / "profile.json")
    budgets = {"cpu": 1000 + sum(rows.values()) // 4, "disk": sum(rows.values()) // 2}
    memory = ",".join(f"{place}={size}" for place, size in budgets.items())
    given = ["plan", "--profile", str(tmp_path / "profile.json"), "--slo-ms", "2000", "--memory", memory]
    given += ["--traffic", "rate=2,sizes=fixed:5", "--out", str(tmp_path / "plan.json"), "--json"]
    assert main(given) == 0
    plan = json.loads(capsys.readouterr().out)
    (placement,) = plan["placement"]["paths"]
    cuts = placement["tables"].values()
    for tier in ("host", "disk", "remote"):
        assert sum(t[tier] for t in cuts) > 10
    assert 256 * sum(t["host"] + t["disk"] for t in cuts if t["disk"]) <= budgets["disk"]
    quiet = {"drain_grace_s": 0, "default_budget_ms": 60_000}
    try:
        with (
            start({"plan": tmp_path / "plan.json", "tier_directory": tmp_path} | quiet) as placed,
            httpx.Client(base_url=placed.url, timeout=60) as http,
        ):
            for request in requests[:30]:
                content = {"columns": request.columns}
                assert answered(http, "predict", content) == answered(in_memory, "predict", content)
            counted = http.get("/metrics").text.splitlines()
    finally:
        store.kill()
    for tier in ("host", "disk", "remote"):
        name = f'polyrec_embedding_lookups_total{{tier="{tier}"}} '
        (looked_up,) = [float(line.removeprefix(name)) for line in counted if line.startswith(name)]
        assert looked_up > 0


def test_a_placement_that_keeps_all_rows_in_memory_opens_no_tiers(
    opened: Callable[[Plan], Engine], paged: Bundle, tmp_path: Path
) -> None:
    engine = opened(placed_plan(paged, tmp_path, lambda rows: {"host": rows}))
    assert not engine.stacks()
    assert engine.serving.tiers.prefetcher is None


def test_paths_of_one_bundle_share_its_tiers_and_a_whole_one_makes_them_needless(
    opened: Callable[[Plan], Engine], paged: Bundle, tmp_path: Path
) -> None:
    plan = placed_plan(paged, tmp_path)
    assert plan.placement is not None
    second = PlannedPath(name="torch@cpu", bundle=paged.path, runtime="torch")
    narrow = plan.placement.paths[0].model_copy(
        update={
            "path": "torch@cpu",
            "tables": {t: c.model_copy(update={"host": 0, "disk": c.host + c.disk})
                       for t, c in plan.placement.paths[0].tables.items()},
        }
    )  # fmt: skip
    both = plan.model_copy(
        update={
            "paths": (*plan.paths, second),
            "placement": plan.placement.model_copy(update={"paths": (narrow, *plan.placement.paths)}),
        }
    )
    stacks = opened(both).stacks()
    assert set(stacks) == {"table@cpu", "torch@cpu"}
    assert stacks["table@cpu"] is stacks["torch@cpu"]
    rows = paged.encoder.vocabularies["item"].rows
    assert stacks["torch@cpu"].tiers.layout.cuts["item"] == (0, rows // 8, rows - rows // 8, 0)
    whole = both.model_copy(update={"placement": plan.placement})
    assert not opened(whole).stacks()


def test_what_cannot_be_done_is_rejected_in_one_line(
    opened: Callable[[Plan], Engine], paged: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(
        RuntimeUnavailable, match=r"path 'table@cpu': placement: table 'user_id' has \d+ rows"
    ):
        opened(placed_plan(paged, tmp_path, lambda rows: {"host": 1, "disk": rows}))
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeUnavailable, match=r"the disk tier in .* cannot be opened"):
        opened(placed_plan(paged, tmp_path / "file"))
    with pytest.raises(
        PlanError, match=r"'table@cpu' has rows on a device in tiers.*'cpu.0' cannot be a process"
    ):
        opened(placed_plan(paged, tmp_path, lambda rows: {"device": 1, "host": rows - 1}, lane="process"))
    onnx = placed_plan(paged, tmp_path, lambda rows: {"device": 1, "host": rows - 1})
    with pytest.raises(PlanError, match="onnx looks rows up on the host"):
        opened(onnx)


def test_another_generation_takes_over_and_the_old_tiers_close_after_their_last_query(
    opened: Callable[[Plan], Engine],
    paged: Bundle,
    request_: Request,
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    plan = placed_plan(paged, tmp_path)
    engine = opened(plan)
    old = engine.serving
    (stack,) = old.tiers.distinct

    async def run() -> None:
        rows = old.json_decoder.predict(orjson.dumps({"columns": request_.columns}))
        waiting = [old.dispatcher.submit(rows, clock(), 60).payload.answer for _ in range(20)]
        engine.load(plan)
        assert engine.serving is not old
        for answer in waiting:
            np.testing.assert_allclose((await answer).probabilities, whole(request_), atol=1e-6)
        while old.tiers.stacks:
            await asyncio.sleep(0.001)

    asyncio.run(run())
    with pytest.raises(OSError, match="closed"):
        stack.gather(stack.views.newest, np.zeros(1, np.int64), torch.empty(1, 64))
    assert not engine.serving.tiers.distinct[0].views.newest.readers


@pytest.mark.parametrize("lane", ["thread", "process"])
def test_an_update_is_seen_by_all_answers_that_come_after_it(
    lane: str, client_of: Callable[[Plan], Client], paged: Bundle, request_: Request, tmp_path: Path
) -> None:
    client = client_of(placed_plan(paged, tmp_path, lane=lane))
    before = client.predict(request_)["predictions"]
    items = paged.encoder.vocabularies["item"]
    update = {"tables": {"item": {"ids": list(range(items.rows)), "rows": [[0.25] * 64] * items.rows}}}
    answer = client.post("/v1/admin/embeddings", orjson.dumps(update), ALLOWED)
    assert answer.json() == {"path": "table@cpu", "rows": items.rows}
    after = client.predict(request_)["predictions"]
    assert after != before
    flat = client_of(placed_plan(paged, tmp_path, lambda rows: {"host": rows - 1, "disk": 1}))
    assert flat.post("/v1/admin/embeddings", orjson.dumps(update), ALLOWED).status_code == 200
    assert flat.predict(request_)["predictions"] == pytest.approx(after, abs=1e-6)
    assert client.post("/v1/admin/embeddings", b"{}", {}).status_code == 401


@pytest.mark.parametrize("lane", ["thread", "process"])
def test_a_new_value_is_served_with_the_row_that_it_was_given(
    lane: str, client_of: Callable[[Plan], Client], paged: Bundle, request_: Request, tmp_path: Path
) -> None:
    model, encoder = reserve(paged, {"item": 2})
    out = write_bundle(tmp_path / "reserved", model, paged.manifest.representation, encoder, {}, {})
    client = client_of(placed_plan(load_bundle(out.path), tmp_path, lane=lane))
    values = encoder.vocabularies["item"].values
    assert values is not None
    known = values[0].as_py()
    update = {"tables": {"item": {"values": [known, "new"], "rows": [[0.25] * 64] * 2}}, "add": True}

    def score(item: str) -> float:
        columns = {name: column[:1] for name, column in request_.columns.items()}
        body = {"columns": {**columns, "item": [item]}}
        return client.post("/v1/predict", orjson.dumps(body), {}).json()["predictions"][0]

    def scores() -> list[float]:
        """Scores of one candidate as a known item, as the new one and as one that nobody knows."""
        return [score(item) for item in (known, "new", "unheard of")]

    of_known, of_new, of_unknown = scores()
    assert of_new == of_unknown != of_known
    answer = client.post("/v1/admin/embeddings", orjson.dumps(update), ALLOWED)
    assert answer.json() == {"path": "table@cpu", "rows": 2, "added": 1}
    assert client.metric("polyrec_reserved_rows", path="table@cpu", state="taken") == 1
    of_known, of_new, unchanged = scores()
    assert of_new == of_known != of_unknown == unchanged
    gone = {"tables": {"item": {"retract": ["new"]}}}
    assert client.post("/v1/admin/embeddings", orjson.dumps(gone), ALLOWED).json()["retracted"] == 1
    assert scores() == [of_known, of_unknown, of_unknown]


@pytest.mark.parametrize("lane", ["thread", "process"])
def test_no_answer_is_made_of_half_an_update(
    lane: str, client_of: Callable[[Plan], Client], paged: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    client = client_of(placed_plan(paged, tmp_path, lane=lane, lanes=2))
    items = paged.encoder.vocabularies["item"]

    def update(value: float) -> bytes:
        rows = [[value] * 64] * items.rows
        return orjson.dumps({"tables": {"item": {"ids": list(range(items.rows)), "rows": rows}}})

    page = ("POST", "/v1/admin/embeddings")
    expected = []
    # one row each, so that answers do not depend on who shares the batch
    bodies = [orjson.dumps({"instances": r.rows[:1]}) for r in requests[:4]]
    for value in (0.125, -0.5):
        assert client.post(page[1], update(value), ALLOWED).status_code == 200
        expected.append([client.post("/v1/predict", b).json()["predictions"][0] for b in bodies])
    assert not np.allclose(expected[0], expected[1], atol=1e-4)
    seen = set()
    for value in (0.125, -0.5) * 6:
        calls: list[tuple[str, str, dict[str, Any]]]
        calls = [("POST", "/v1/predict", {"content": b}) for b in bodies for _ in range(8)]
        calls.insert(4, (*page, {"content": update(value), "headers": ALLOWED}))
        for (_, where, named), answer in zip(calls, client.together(calls), strict=True):
            assert answer.status_code == 200
            if where == "/v1/predict":
                i = bodies.index(named["content"])
                given = answer.json()["predictions"][0]
                near = [abs(given - e[i]) < 1e-5 for e in expected]
                assert any(near)
                seen.add(near.index(True))
    assert seen == {0, 1}


@pytest.mark.parametrize("lane", ["thread", "process"])
def test_answers_without_the_remote_store_are_flagged(
    lane: str,
    client_of: Callable[[Plan], Client],
    paged: Bundle,
    request_: Request,
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    store = RedisServer(tmp_path)
    try:
        remote = {"url": store.url, "fill": True, "timeout_ms": 2000}

        def beyond(rows: int) -> dict[str, int]:
            return {"host": rows // 8, "disk": rows // 8, "remote": rows - 2 * (rows // 8)}

        client = client_of(placed_plan(paged, tmp_path, beyond, lane=lane, remote=remote))
        given = client.predict(request_)
        assert (given["degraded"], given["reason"]) == (False, None)
        np.testing.assert_allclose(
            np.array(given["predictions"], np.float32), whole(request_), rtol=0, atol=1e-6
        )
        assert client.metric("polyrec_embedding_fallbacks_total") == 0
        store.kill()
        lost = client.predict(request_)
        assert (lost["degraded"], lost["reason"]) == (True, "failure")
        assert lost["predictions"] != given["predictions"]
        assert client.metric("polyrec_embedding_fallbacks_total") > 0
        assert client.metric("polyrec_degraded_total", path="table@cpu", reason="failure") == 1
        store.start()  # empty: its rows are found missing, and the answers say so
        assert client.predict(request_)["reason"] == "failure"
        give_up_s = clock() + 60
        while [event["kind"] for event in client.send("GET", "/v1/status").json()["events"]] != ["rows_lost"]:
            assert clock() < give_up_s
    finally:
        store.kill()


def test_a_reload_and_a_rollback_serve_from_tiers_too(
    client_of: Callable[[Plan], Client],
    paged: Bundle,
    plan: Plan,
    request_: Request,
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    client = client_of(placed_plan(paged, tmp_path))
    save_plan(plan, tmp_path / "flat.json")
    act = orjson.dumps({"plan": str(tmp_path / "flat.json")})
    assert client.post("/v1/admin/reload", act, ALLOWED).status_code == 200
    answer = client.post("/v1/admin/embeddings", b'{"tables": {}}', ALLOWED)
    assert answer.status_code == 422
    assert "no path accepts row updates" in answer.json()["error"]
    assert client.post("/v1/admin/rollback", b"{}", ALLOWED).status_code == 200
    given = client.predict(request_)["predictions"]
    np.testing.assert_allclose(np.array(given, np.float32), whole(request_), rtol=0, atol=1e-6)
    assert client.post("/v1/admin/embeddings", b'{"tables": {}}', ALLOWED).status_code == 200


def test_an_update_moves_into_a_stack_while_it_gathers(
    opened: Callable[[Plan], Engine], paged: Bundle, tmp_path: Path
) -> None:
    stack = opened(placed_plan(paged, tmp_path, an_eighth)).stacks()["table@cpu"]
    one = TableUpdate(np.array([0]), np.ones((1, 64), np.float32))
    assert apply_update(stack, {"item": one}).rows == 1
    assert stack.settle(10)
