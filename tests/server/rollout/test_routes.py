"""Rollouts of one of two models in a real server, which is stopped during one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.forking import start
from tests.server.placing import ALLOWED, TOKEN

FRUIT = {"context": {"buyer": "b3"}, "candidates": {"fruit": ["apple", "fig", "plum"], "weight": [1, 2, 3]}}


def test_a_rollout_is_one_models_and_ends_with_the_server(
    bundle_dir: Path, shop_dir: Path, request_: Any, tmp_path: Path
) -> None:
    settings = {
        "plans": f"hotels={bundle_dir},shop={shop_dir}",
        "admin_token": TOKEN,
        "drain_grace_s": 0,
        "default_budget_ms": 60_000,
    }
    said = tmp_path / "stderr"
    with (
        said.open("w") as stderr,
        start(settings, stderr) as child,
        httpx.Client(base_url=child.url, timeout=60) as http,
    ):
        root = "/v1/models/shop/admin/rollout"
        body = {"plan": str(shop_dir), "share": 0.5, "by": "header:x-user", "shadow": 1}
        assert http.post(f"{root}/start", json=body).status_code == 401
        assert http.post(f"{root}/start", json=body, headers=ALLOWED).status_code == 200
        arms = set()
        for i in range(20):
            answer = http.post("/v1/models/shop/rank", json=FRUIT, headers={"x-user": f"u{i}"})
            assert answer.status_code == 200
            arms.add(answer.headers["x-polyrec-arm"])
        assert arms == {"stable", "canary"}
        assert "x-polyrec-arm" not in http.post("/v1/rank", json={"candidates": [{}]}).headers
        assert http.get("/v1/admin/rollout", headers=ALLOWED).json()["rollout"] is None
        assert http.get(root, headers=ALLOWED).json()["rollout"]["share"] == 0.5
        assert http.post("/v1/admin/reload", json={}, headers=ALLOWED).status_code == 200
        assert http.post("/v1/models/shop/admin/reload", json={}, headers=ALLOWED).status_code == 409
        assert 'polyrec_rollout_share{model="shop"} 0.5' in _metrics_once_judged(http)
        assert child.stop() == 0
    assert "Traceback" not in said.read_text()


def _metrics_once_judged(http: httpx.Client) -> str:
    while True:
        text = http.get("/metrics").text
        if 'polyrec_rollout_share{model="shop"} 0.0' not in text:
            return text
