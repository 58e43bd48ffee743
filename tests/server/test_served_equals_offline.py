"""The promise of the whole path: every form of request gives what the bundle predicts offline."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from polyrec.planner.plan import Plan, save_plan
from tests.forking import start
from tests.models.executions import EXECUTIONS, RUNTIMES

TOLERANCE = 1e-5
TOKEN = "a token of sixteen and more"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_form_of_request_gives_the_offline_probabilities(
    bundle_dir: Path,
    runtime: str,
    requests: list[Any],
    tensors: Callable[[Any], dict[str, Any]],
    offline: Callable[[Any], Any],
) -> None:
    with (
        start(
            {"bundle": bundle_dir, "runtime": runtime, "drain_grace_s": 0, "default_budget_ms": 60_000}
        ) as server,
        httpx.Client(base_url=server.url, timeout=30, headers={"x-latency-budget-ms": "30000"}) as http,
    ):

        def post(path: str, **named: Any) -> Any:
            answer = http.post(path, **named)
            assert answer.status_code == 200, answer.text
            return answer.json()

        for request in requests:
            expected = offline(request)
            ranked = post("/v1/rank", json={"context": request.context, "candidates": request.candidates})
            by_position = np.empty(expected.size)
            by_position[ranked["order"]] = ranked["scores"]
            arrays = tensors(request)
            heads = [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": "FP32" if array.dtype.kind == "f" else "INT64",
                }
                for name, array in arrays.items()
            ]
            as_json = [h | {"data": a.tolist()} for h, a in zip(heads, arrays.values(), strict=True)]
            sizes = [{"parameters": {"binary_data_size": a.nbytes}} for a in arrays.values()]
            header = json.dumps({"inputs": [h | s for h, s in zip(heads, sizes, strict=True)]}).encode()
            infer = "/v2/models/dlrm/infer"
            served = {
                "instances": post("/v1/predict", json={"instances": request.rows})["predictions"],
                "columns": post("/v1/predict", json={"columns": request.columns})["predictions"],
                "rank": by_position,
                "tensors in JSON": post(infer, json={"inputs": as_json})["outputs"][0]["data"],
                "tensors in binary": post(
                    infer,
                    content=header + b"".join(a.tobytes() for a in arrays.values()),
                    headers={"inference-header-content-length": str(len(header))},
                )["outputs"][0]["data"],
            }
            for form, probabilities in served.items():
                assert np.abs(probabilities - expected).max() <= TOLERANCE, form


def test_lanes_of_every_runtime_answer_alike_in_one_server(
    bundle_dir: Path, tmp_path: Path, requests: list[Any], offline: Callable[[Any], Any]
) -> None:
    paths = [
        {"name": f"table.{name}@cpu", "bundle": bundle_dir, "runtime": name}
        for name, precision in EXECUTIONS
        if precision == "fp32"
    ]
    lanes = [
        {"name": "a", "kind": "inline"},
        {"name": "b", "kind": "thread"},
        {"name": "c", "kind": "process"},
    ]
    save_plan(Plan.model_validate({"paths": paths, "lanes": lanes}), tmp_path / "plan.json")
    settings = {"plan": tmp_path / "plan.json", "admin_token": TOKEN, "drain_grace_s": 0}
    with (
        start(settings | {"default_budget_ms": 60_000}) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
        ThreadPoolExecutor(6) as pool,
    ):
        for path in paths:
            policy = {"policy": f"static:{path['name']}"}
            allowed = {"authorization": f"Bearer {TOKEN}"}
            assert http.post("/v1/admin/routing", json=policy, headers=allowed).status_code == 200
            asked = requests[:12]
            answers = pool.map(lambda r: http.post("/v1/predict", json={"instances": r.rows}), asked)
            for request, answer in zip(asked, answers, strict=True):
                assert answer.status_code == 200, answer.text
                assert answer.headers["x-polyrec-path"] == path["name"]
                assert np.abs(answer.json()["predictions"] - offline(request)).max() <= TOLERANCE
