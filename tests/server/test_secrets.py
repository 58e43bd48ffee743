"""A real server never reveals its passwords, its token, or paths on its machine."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.tier_settings import RemoteStore, TierCuts
from polyrec.planner.placement import PlacedPath, Placement
from polyrec.planner.plan import Plan, save_plan
from tests.forking import start

TOKEN = "s3cret-token-of-sixteen"
PAGES = ("/v1/plan", "/v1/paths", "/v1/status", "/v1/route", "/", "/metrics", "/readyz", "/livez", "/v2")
BODY = b'{"instances": [{"item": "1"}, {"item": "none such"}]}'


def test_no_page_answer_or_log_line_shows_a_secret_or_a_folder(
    plan: Plan, bundle: Bundle, tmp_path: Path
) -> None:
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "table").symlink_to(bundle.path.absolute())
    rows = bundle.encoder.vocabularies["item"].rows
    # a store that does not answer, so that the log has to name it
    store = RemoteStore(url="redis://rows:s3cret-in-url@127.0.0.1:1", password_file=Path("s3cret.txt"))
    (folder / "s3cret.txt").write_text("s3cret-in-file")
    placed = PlacedPath(path="table@cpu", tables={"item": TierCuts(host=10, remote=rows - 10)})
    path = plan.paths[0].model_copy(update={"bundle": Path("table"), "runtime": "onnx"})
    changed = {"paths": (path,), "placement": Placement(paths=(placed,), remote=store)}
    save_plan(plan.model_copy(update=changed), folder / "plan.json")
    settings = {"plan": folder / "plan.json", "admin_token": TOKEN, "log_level": "debug", "drain_grace_s": 0}
    seen: dict[str, str] = {}
    with (tmp_path / "log").open("w") as log, start(settings, stderr=log) as server:
        http = httpx.Client(base_url=server.url)
        for page in PAGES:
            seen[page] = http.get(page).text
        answer = http.post("/v1/predict", content=BODY)
        assert answer.json()["reason"] == "failure"  # rows of the store are missing
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        for document in ({"plan": str(folder / "none.json")}, {"plan": str(folder)}, {}):
            said = http.post("/v1/admin/reload", content=json.dumps(document), headers=allowed)
            seen[f"reload {document}"] = said.text
        wrong = {"Authorization": f"Bearer {TOKEN}x"}
        seen["token"] = http.post("/v1/admin/drain", content=b"{}", headers=wrong).text
        http.close()
    seen["log"] = (tmp_path / "log").read_text()
    assert "the remote store at redis://127.0.0.1:1 failed" in seen["log"]
    assert json.loads(seen["/v1/plan"])["paths"][0]["bundle"] == "table"
    for where, text in seen.items():
        for secret in ("s3cret", str(tmp_path), str(bundle.path.parent)):
            assert secret not in text, where
