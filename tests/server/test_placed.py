"""A plan's placement as the server opens it: the same answers from wherever the rows lie."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import torch

from models.batch import F32
from models.bundle import Bundle, load_bundle
from models.data.reader import open_data
from models.dlrm import Architecture
from models.embeddings.tiers.drift import Drift
from models.embeddings.tiers.stack import TierStack
from models.embeddings.tiers.update import TableUpdate, apply_update
from models.errors import FeatureError, RuntimeUnavailable
from models.learning import Learner, Training
from models.runtimes import open_runtime
from models.schema import load_schema
from models.training import Recipe
from planner.plan import Plan, PlanError, PlannedPath, save_plan
from planner.profile import Profile, save_profile
from polyrec.cli import main
from server.dispatcher import clock
from server.engine import Engine
from server.http.admin import Admin
from server.http.app import create_app
from server.running import start
from tests.models.embeddings.tiers.redis_server import RedisServer
from tests.planner.planning import machine, path
from tests.server.conftest import Client, Request
from tests.server.placing import an_eighth, placed_plan

TOKEN = "a token of sixteen and more"
ALLOWED = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def bundle(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """One with rows so long that its few hundred fill pages."""
    schema = load_schema("trivago")
    training = Training(
        architecture=Architecture(width=64, bottom=(16,), top=(32,)),
        recipe=Recipe(epochs=1, batch_rows=256, hide=0.5, hide_from_rows=100),
    )
    folder = tmp_path_factory.mktemp("placed") / "table"
    return load_bundle(Learner(open_data(clicks, schema), schema, training).learn(folder).path)


@pytest.fixture
def opened() -> Iterator[Callable[[Plan], Engine]]:
    engines: list[Engine] = []

    def open_engine(plan: Plan) -> Engine:
        engine = Engine()
        engine.load(plan)
        engines.append(engine)
        return engine

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture
def asked(client: Client, opened: Callable[[Plan], Engine]) -> Callable[[Plan], Client]:
    """A client of an engine of that plan, which can be administered."""

    def ask(plan: Plan) -> Client:
        engine = opened(plan)
        return Client(client.runner, create_app(engine, Admin(engine, TOKEN)))

    return ask


@pytest.fixture(scope="module")
def whole(bundle: Bundle) -> Callable[[Request], F32]:
    """What the bundle predicts with all rows in memory, by the runtime of the plans here: one whose products
    do not depend, in the last bit, on where in memory their factors lie."""
    runtime = open_runtime("onnx", bundle)

    def predict(request: Request) -> F32:
        return runtime.predict(bundle.encoder.from_arrow(request.table.combine_chunks().to_batches()[0]))

    return predict


def predict(client: Client, request: Request) -> Any:
    answer = client.post("/v1/predict", orjson.dumps({"columns": request.columns}))
    assert answer.status_code == 200, answer.text
    return answer.json()


def metric(client: Client, name: str, label: str = "") -> float:
    lines = client.send("GET", "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + label))


@pytest.mark.parametrize("lane", ["inline", "thread"])
def test_answers_are_those_of_the_flat_table_to_the_bit(
    lane: str,
    asked: Callable[[Plan], Client],
    bundle: Bundle,
    requests: list[Request],
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    client = asked(placed_plan(bundle, tmp_path, lane=lane))
    for request in requests[:20]:
        given = predict(client, request)
        assert given["reason"] is None
        np.testing.assert_array_equal(np.array(given["predictions"], np.float32), whole(request))
    assert metric(client, "polyrec_embedding_lookups_total", '{tier="disk"}') > 0
    by_table = [
        metric(client, f"polyrec_embedding_table_{n}_total", '{table="item"') for n in ("lookups", "hits")
    ]
    assert by_table[0] >= by_table[1] > 0
    looked_up = metric(client, "polyrec_embedding_lookups_total", '{tier="host"}')
    assert looked_up >= sum(r.table.num_rows for r in requests[:20])
    status = client.send("GET", "/v1/status").json()
    assert status["now"]["tiers"]["host"][0] == looked_up
    assert 0 < status["now"]["tiers"]["host"][1] < looked_up


def test_a_planned_server_below_the_bundles_size_answers_as_one_with_all_in_memory(
    bundle: Bundle, requests: list[Request], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {t: 256 * v.rows for t, v in bundle.encoder.vocabularies.items()}
    one = path("table@cpu", bundle=bundle.path, tables=rows, origin="measured")
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
        start({"bundle": bundle.path, "runtime": "onnx"} | quiet) as whole,
        httpx.Client(timeout=60) as http,
    ):
        for request in requests[:30]:
            body = {"context": request.context, "candidates": request.candidates}
            answers = [
                http.post(f"{server.url}/v1/{page}", json=asked).json()
                for server in (placed, whole)
                for page, asked in (("rank", body), ("predict", {"columns": request.columns}))
            ]
            assert answers[0] == answers[2]
            assert answers[1] == answers[3]
        counted = http.get(f"{placed.url}/metrics").text
    assert 'polyrec_embedding_read_bytes_total{tier="disk"}' in counted
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".pages"]


def test_a_placement_that_keeps_all_rows_in_memory_opens_no_tiers(
    opened: Callable[[Plan], Engine], bundle: Bundle, tmp_path: Path
) -> None:
    engine = opened(placed_plan(bundle, tmp_path, lambda rows: {"host": rows}))
    assert not engine.stacks()
    assert engine.serving.placed.ahead is None


def test_paths_of_one_bundle_share_its_tiers_and_a_whole_one_makes_them_needless(
    opened: Callable[[Plan], Engine], bundle: Bundle, tmp_path: Path
) -> None:
    plan = placed_plan(bundle, tmp_path)
    assert plan.placement is not None
    second = PlannedPath(name="torch@cpu", bundle=bundle.path, runtime="torch")
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
    rows = bundle.encoder.vocabularies["item"].rows
    assert stacks["torch@cpu"].tiers.layout.cuts["item"] == (0, rows // 8, rows - rows // 8, 0)
    whole = both.model_copy(update={"placement": plan.placement})
    assert not opened(whole).stacks()


def test_what_cannot_be_done_is_refused_in_one_line(
    opened: Callable[[Plan], Engine], bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(
        PlanError, match=r"path 'table@cpu' has rows in tiers.*lane 'cpu.0' cannot be a process"
    ):
        opened(placed_plan(bundle, tmp_path, lane="process"))
    with pytest.raises(
        RuntimeUnavailable, match=r"path 'table@cpu': placement: table 'user_id' has \d+ rows"
    ):
        opened(placed_plan(bundle, tmp_path, lambda rows: {"host": 1, "disk": rows}))
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeUnavailable, match=r"the disk tier in .* cannot be opened"):
        opened(placed_plan(bundle, tmp_path / "file"))
    onnx = placed_plan(bundle, tmp_path, lambda rows: {"device": 1, "host": rows - 1})
    with pytest.raises(PlanError, match="onnx looks rows up on the host"):
        opened(onnx)


def test_another_generation_takes_over_and_the_old_tiers_close_after_their_last_query(
    opened: Callable[[Plan], Engine],
    bundle: Bundle,
    request_: Request,
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    plan = placed_plan(bundle, tmp_path)
    engine = opened(plan)
    old = engine.serving
    (stack,) = old.placed.distinct

    async def run() -> None:
        rows = old.decoder.predict(orjson.dumps({"columns": request_.columns}))
        waiting = [old.dispatcher.ask(rows, clock(), 60).payload.answer for _ in range(20)]
        engine.load(plan)
        assert engine.serving is not old
        for answer in waiting:
            np.testing.assert_allclose((await answer).probabilities, whole(request_), atol=1e-6)
        while old.placed.stacks:
            await asyncio.sleep(0.001)

    asyncio.run(run())
    with pytest.raises(OSError, match="closed"):
        stack.gather(stack.views.newest, np.zeros(1, np.int64), torch.empty(1, 64))
    assert not engine.serving.placed.distinct[0].views.newest.readers


def test_an_update_is_seen_by_all_answers_that_come_after_it(
    asked: Callable[[Plan], Client], bundle: Bundle, request_: Request, tmp_path: Path
) -> None:
    client = asked(placed_plan(bundle, tmp_path))
    before = predict(client, request_)["predictions"]
    items = bundle.encoder.vocabularies["item"]
    update = {"tables": {"item": {"ids": list(range(items.rows)), "rows": [[0.25] * 64] * items.rows}}}
    answer = client.post("/v1/admin/embeddings", orjson.dumps(update), ALLOWED)
    assert answer.json() == {"path": "table@cpu", "rows": items.rows}
    after = predict(client, request_)["predictions"]
    assert after != before
    flat = asked(placed_plan(bundle, tmp_path, lambda rows: {"host": rows - 1, "disk": 1}))
    assert flat.post("/v1/admin/embeddings", orjson.dumps(update), ALLOWED).status_code == 200
    assert predict(flat, request_)["predictions"] == after
    assert client.post("/v1/admin/embeddings", b"{}", {}).status_code == 401


def test_no_answer_is_made_of_half_an_update(
    asked: Callable[[Plan], Client], bundle: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    client = asked(placed_plan(bundle, tmp_path, lanes=2))
    items = bundle.encoder.vocabularies["item"]

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


def test_no_wrong_row_is_served_while_rows_follow_their_popularity(
    asked: Callable[[Plan], Client],
    bundle: Bundle,
    requests: list[Request],
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    client = asked(placed_plan(bundle, tmp_path, lanes=2, drift_s=0.02))
    # popular as calibration never saw it: the last of the data, again and again
    chosen = [r for r in requests if r.table.num_rows > 2][-6:]
    bodies = [orjson.dumps({"columns": r.columns}) for r in chosen]
    right = [whole(r) for r in chosen]
    for _ in range(60):
        calls = [("POST", "/v1/predict", {"content": b}) for b in bodies for _ in range(8)]
        for i, answer in enumerate(client.together(calls)):
            assert answer.status_code == 200
            given = np.array(answer.json()["predictions"], np.float32)
            np.testing.assert_allclose(given, right[i // 8], atol=2e-6)
        if metric(client, "polyrec_embedding_orders_total") > 3:
            break
    assert metric(client, "polyrec_embedding_orders_total") > 3
    assert metric(client, "polyrec_embedding_moved_rows_total") > 3


def test_unknown_values_are_counted_in_every_order(
    opened: Callable[[Plan], Engine], bundle: Bundle, tmp_path: Path, client: Client
) -> None:
    engine = opened(placed_plan(bundle, tmp_path))
    served = Client(client.runner, create_app(engine))
    stack = engine.stacks()["table@cpu"]
    stack.sample.every = 1
    unknown = orjson.dumps({"instances": [{"item": "never seen"}]})
    for _ in range(40):
        assert served.post("/v1/predict", unknown).status_code == 200
    before = bundle.encoder.vocabularies["item"].oov_rank
    assert Drift(stack).follow().rows
    encoder = stack.views.newest.encoder
    assert encoder is not None
    assert encoder.vocabularies["item"].oov_rank != before
    for _ in range(2):
        assert served.post("/v1/predict", unknown).status_code == 200
    assert metric(served, "polyrec_oov_lookups_total", '{feature="item"}') == 42


def test_rows_are_read_ahead_for_queries_that_wait(
    opened: Callable[[Plan], Engine],
    bundle: Bundle,
    requests: list[Request],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go = threading.Event()
    gather = TierStack.gather

    def held(self: TierStack, *arguments: Any, **named: Any) -> int:
        let_go.wait(60)
        return gather(self, *arguments, **named)

    monkeypatch.setattr(TierStack, "gather", held)

    def pages(prefetch: bool) -> int:
        let_go.set()  # rows are looked up while it opens, too
        engine = opened(placed_plan(bundle, tmp_path, lambda n: {"disk": n}, prefetch=prefetch))
        let_go.clear()
        serving = engine.serving
        stack = engine.stacks()["table@cpu"]

        async def run() -> None:
            asked = []
            for request in requests[:40]:
                rows = serving.decoder.predict(orjson.dumps({"columns": request.columns}))
                asked.append(serving.dispatcher.ask(rows, clock(), 60).payload.answer)
                for _ in range(4):  # turns of the loop, in which the first goes to the lane
                    await asyncio.sleep(0)
            until_s = clock() + 30
            while prefetch and not stack.figures().prefetched_pages and clock() < until_s:
                await asyncio.sleep(0.001)
            let_go.set()
            await asyncio.gather(*asked)

        asyncio.run(run())
        assert (serving.placed.ahead is not None) == prefetch
        return stack.figures().prefetched_pages

    assert pages(prefetch=False) == 0
    assert pages(prefetch=True) > 0


def test_a_query_that_cannot_be_encoded_keeps_nobody_from_being_read_ahead(
    opened: Callable[[Plan], Engine], bundle: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    engine = opened(placed_plan(bundle, tmp_path, lambda n: {"disk": n}))
    serving, stack = engine.serving, engine.stacks()["table@cpu"]
    ahead = serving.placed.ahead
    assert ahead is not None
    wrong = serving.decoder.predict(b'{"instances": [{"price_rank": 1e39}]}')
    with pytest.raises(FeatureError, match="price_rank"):
        wrong.encode(bundle.encoder)
    ahead.wanted(None, wrong)
    for request in requests[:10]:
        ahead.wanted(0, serving.decoder.predict(orjson.dumps({"columns": request.columns})))
    ahead.close()
    assert stack.figures().prefetched_pages > 0
    assert not stack.views.newest.readers


def test_answers_without_the_remote_store_are_flagged(
    asked: Callable[[Plan], Client],
    bundle: Bundle,
    request_: Request,
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    store = RedisServer(tmp_path)
    try:
        remote = {"url": store.url, "fill": True, "timeout_ms": 2000}

        def beyond(rows: int) -> dict[str, int]:
            return {"host": rows // 8, "disk": rows // 8, "remote": rows - 2 * (rows // 8)}

        client = asked(placed_plan(bundle, tmp_path, beyond, remote=remote))
        given = predict(client, request_)
        assert (given["reduced"], given["reason"]) == (False, None)
        np.testing.assert_array_equal(np.array(given["predictions"], np.float32), whole(request_))
        assert metric(client, "polyrec_embedding_fallbacks_total") == 0
        store.kill()
        lost = predict(client, request_)
        assert (lost["reduced"], lost["reason"]) == (True, "failure")
        assert lost["predictions"] != given["predictions"]
        assert metric(client, "polyrec_embedding_fallbacks_total") > 0
        assert metric(client, "polyrec_reduced_total", '{path="table@cpu",reason="failure"}') == 1
        store.start()  # empty: its rows are found missing, and the answers say so
        assert predict(client, request_)["reason"] == "failure"
    finally:
        store.kill()


def test_a_reload_and_a_rollback_serve_from_tiers_too(
    asked: Callable[[Plan], Client],
    bundle: Bundle,
    plan: Plan,
    request_: Request,
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    client = asked(placed_plan(bundle, tmp_path))
    save_plan(plan, tmp_path / "flat.json")
    act = orjson.dumps({"plan": str(tmp_path / "flat.json")})
    assert client.post("/v1/admin/reload", act, ALLOWED).status_code == 200
    answer = client.post("/v1/admin/embeddings", b'{"tables": {}}', ALLOWED)
    assert answer.status_code == 422
    assert "no path has its rows in tiers" in answer.json()["error"]
    assert client.post("/v1/admin/rollback", b"{}", ALLOWED).status_code == 200
    given = predict(client, request_)["predictions"]
    np.testing.assert_array_equal(np.array(given, np.float32), whole(request_))
    assert client.post("/v1/admin/embeddings", b'{"tables": {}}', ALLOWED).status_code == 200


def test_an_update_moves_into_a_stack_while_it_gathers(
    opened: Callable[[Plan], Engine], bundle: Bundle, tmp_path: Path
) -> None:
    stack = opened(placed_plan(bundle, tmp_path, an_eighth)).stacks()["table@cpu"]
    one = TableUpdate(np.array([0]), np.ones((1, 64), np.float32))
    assert apply_update(stack, {"item": one}) == 1
    assert stack.settle(10)
