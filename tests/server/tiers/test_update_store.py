"""Updates of rows across reloads and rollbacks, through HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import quantize_bundle
from polyrec.models.tiers.disk.page_file import write_pages
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.app.settings.environment import load_settings
from polyrec.server.app.settings.settings import SettingsError
from polyrec.server.child import StartFailed, start
from tests.server.conftest import Client, Request
from tests.server.placing import ALLOWED, TOKEN, placed_plan


def updated(client: Client, value: float, rows: int) -> None:
    """Every item's row has the value."""
    tables = {"item": {"ids": list(range(rows)), "rows": [[value] * 64] * rows}}
    answer = client.post("/v1/admin/embeddings", orjson.dumps({"tables": tables}), ALLOWED)
    assert answer.json() == {"path": "table@cpu", "rows": rows}


def test_a_reload_of_the_same_bundle_keeps_its_updates_and_another_has_its_own_rows(
    client_of: Callable[[Plan], Client], paged: Bundle, request_: Request, tmp_path: Path
) -> None:
    int8 = write_bundle(
        tmp_path / "int8", *quantize_bundle(paged, "int8"), paged.encoder, paged.manifest.metrics, {}
    )
    plans = {}
    for name, own in {"old": paged, "new": int8}.items():
        plans[name] = orjson.dumps({"plan": str(tmp_path / f"{name}.json")})
        save_plan(placed_plan(own, tmp_path), tmp_path / f"{name}.json")
    rows = paged.encoder.vocabularies["item"].rows
    client = client_of(placed_plan(paged, tmp_path))

    def act(name: str, body: bytes = b"{}") -> Any:
        answer = client.post(f"/v1/admin/{name}", body, ALLOWED)
        assert answer.status_code == 200, answer.text
        return answer.json()["updates"]

    def now() -> Any:
        return client.predict(request_)["predictions"]

    assert act("reload", plans["new"]) == {"carried": {}, "left_behind": {}}
    int8_as_written = now()
    assert act("rollback") == {"carried": {}, "left_behind": {}}
    updated(client, 0.25, rows)
    after = now()
    assert act("reload", plans["old"]) == {"carried": {"table@cpu": rows}, "left_behind": {}}
    assert now() == after
    assert act("reload", plans["new"]) == {"carried": {}, "left_behind": {"table@cpu": rows}}
    assert now() == int8_as_written
    updated(client, -0.5, rows)
    int8_after = now()
    assert act("rollback") == {"carried": {"table@cpu": rows}, "left_behind": {"table@cpu": rows}}
    assert now() == after
    assert act("rollback") == {"carried": {"table@cpu": rows}, "left_behind": {"table@cpu": rows}}
    assert now() == int8_after


def test_a_rollout_tells_which_updates_its_promotion_leaves_behind(
    client_of: Callable[[Plan], Client], paged: Bundle, tmp_path: Path
) -> None:
    int8 = write_bundle(
        tmp_path / "int8", *quantize_bundle(paged, "int8"), paged.encoder, paged.manifest.metrics, {}
    )
    save_plan(placed_plan(int8, tmp_path, lambda n: {"host": n}), tmp_path / "whole.json")
    client = client_of(placed_plan(paged, tmp_path))
    rows = paged.encoder.vocabularies["item"].rows
    updated(client, 0.25, rows)
    behind = f"row updates left behind: {rows:,} of path table@cpu"
    started = client.post(
        "/v1/admin/rollout/start", orjson.dumps({"plan": str(tmp_path / "whole.json")}), ALLOWED
    )
    assert behind in started.json()["rollout"]["changes"]
    ended = client.post("/v1/admin/rollout/promote", b"{}", ALLOWED).json()["ended"][0]
    assert ended["outcome"] == "promoted"
    assert behind in ended["changes"]


def test_updates_are_reported_and_kept_if_a_plan_has_no_tiers(
    client_of: Callable[[Plan], Client],
    paged: Bundle,
    request_: Request,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = client_of(placed_plan(paged, tmp_path))
    rows = paged.encoder.vocabularies["item"].rows
    updated(client, 0.25, rows)
    after = client.predict(request_)["predictions"]
    save_plan(placed_plan(paged, tmp_path, lambda n: {"host": n}), tmp_path / "whole.json")
    whole = orjson.dumps({"plan": str(tmp_path / "whole.json")})
    left = client.post("/v1/admin/reload", whole, ALLOWED).json()["updates"]
    assert left == {"carried": {}, "left_behind": {"table@cpu": rows}}
    (line,) = (message for message in caplog.messages if "left behind" in message)  # once
    assert line.endswith(f"; row updates left behind: {rows:,} of path table@cpu")
    back = client.post("/v1/admin/rollback", b"{}", ALLOWED).json()["updates"]
    assert back == {"carried": {"table@cpu": rows}, "left_behind": {}}
    assert client.predict(request_)["predictions"] == pytest.approx(after, abs=1e-6)


def test_an_update_that_comes_during_a_reload_is_served_before_and_after_it(
    client_of: Callable[[Plan], Client],
    paged: Bundle,
    request_: Request,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = client_of(placed_plan(paged, tmp_path))
    save_plan(placed_plan(paged, tmp_path), tmp_path / "plan.json")
    rows = paged.encoder.vocabularies["item"].rows
    updated(client, 0.25, rows)
    opening, let_go = threading.Event(), threading.Event()

    def held(*arguments: Any) -> None:
        # its host tier is filled by now, its file is not
        opening.set()
        assert let_go.wait(60)
        write_pages(*arguments)

    monkeypatch.setattr("polyrec.models.tiers.opening.write_pages", held)
    tables = {"item": {"ids": list(range(0, rows, 2)), "rows": [[-0.5] * 64] * len(range(0, rows, 2))}}
    calls = {
        "predict": ("/v1/predict", orjson.dumps({"columns": request_.columns}), {}),
        "update": ("/v1/admin/embeddings", orjson.dumps({"tables": tables}), ALLOWED),
        "reload": ("/v1/admin/reload", orjson.dumps({"plan": str(tmp_path / "plan.json")}), ALLOWED),
    }

    async def run() -> list[Any]:
        transport = httpx.ASGITransport(app=client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://polyrec", timeout=60) as http:

            async def send(name: str) -> Any:
                path, content, headers = calls[name]
                answer = await http.post(path, content=content, headers=headers)
                assert answer.status_code == 200, answer.text
                return answer.json()

            before = await send("predict")
            reload = asyncio.create_task(send("reload"))
            assert await asyncio.to_thread(opening.wait, 60)
            await send("update")
            during = await send("predict")
            let_go.set()
            return [before, during, (await reload)["updates"], await send("predict")]

    before, during, carried, after = client.runner.run(run())
    assert carried == {"carried": {"table@cpu": rows}, "left_behind": {}}
    assert during["predictions"] != before["predictions"]
    assert after["predictions"] == pytest.approx(during["predictions"], abs=1e-6)


@pytest.mark.long
def test_logged_updates_are_served_after_kill_9(paged: Bundle, request_: Request, tmp_path: Path) -> None:
    save_plan(placed_plan(paged, tmp_path), tmp_path / "plan.json")
    settings = {"plan": tmp_path / "plan.json", "admin_token": TOKEN, "update_log": tmp_path / "log"}
    body = {"context": request_.context, "candidates": request_.candidates}
    rows = paged.encoder.vocabularies["item"].rows

    def update(http: httpx.Client, url: str, value: float, key: str) -> Any:
        tables = {"item": {"ids": list(range(rows)), "rows": [[value] * 64] * rows}}
        content = orjson.dumps({"tables": tables, "key": key})
        return http.post(f"{url}/v1/admin/embeddings", content=content, headers=ALLOWED).json()

    with httpx.Client(timeout=60) as http:
        with start(settings, lifeline=True) as server:
            as_written = http.post(f"{server.url}/v1/rank", json=body).json()["scores"]
            assert update(http, server.url, 0.25, "a") == {
                "path": "table@cpu",
                "rows": rows,
                "repeated": False,
            }
            assert update(http, server.url, -0.5, "b")["repeated"] is False
            updated_scores = http.post(f"{server.url}/v1/rank", json=body).json()["scores"]
            with pytest.raises(StartFailed), start(settings):  # one server at a time has the log
                pass
            server.process.kill()
            server.process.wait()
        assert updated_scores != as_written
        with start(settings) as server:
            assert http.post(f"{server.url}/v1/rank", json=body).json()["scores"] == updated_scores
            # sent again, the older one does not undo the newer one
            assert update(http, server.url, 0.25, "a")["repeated"] is True
            assert http.post(f"{server.url}/v1/rank", json=body).json()["scores"] == updated_scores


@pytest.mark.parametrize("given", [{"update_log": "log"}, {"updates": True}])
def test_updates_need_a_single_process(given: dict[str, object]) -> None:
    (name,) = given
    with pytest.raises(SettingsError, match=f"--{name.replace('_', '-')} is for one server process"):
        load_settings({"plan": "p.json", "processes": 2} | given, {})
