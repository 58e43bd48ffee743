"""Two models in one server: every address reaches the model that it names, and no other."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pytest

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.runtimes import open_runtime
from polyrec.server.child import ServerProcess, StartFailed
from tests.forking import start
from tests.server.placing import TOKEN

ADMIN = {"authorization": f"Bearer {TOKEN}"}
FRUIT = {"context": {"buyer": "b3"}, "candidates": {"fruit": ["apple", "fig", "plum"], "weight": [1, 2, 3]}}
UNKNOWN = "unknown model 'books'; this server has 'hotels', 'shop'"


@pytest.fixture(scope="module")
def fruit_scores(shop_dir: Path) -> Any:
    """Probabilities of FRUIT from the bundle, without any server."""
    shop = load_bundle(shop_dir)
    table = pa.table({"buyer": ["b3"] * 3, **FRUIT["candidates"]})
    batch = shop.encoder.from_arrow(table.to_batches()[0])
    return open_runtime("torch", shop).predict(batch)


def columns_of(body: dict[str, Any]) -> dict[str, Any]:
    rows = len(body["candidates"]["fruit"])
    return {"columns": body["candidates"] | {k: [v] * rows for k, v in body["context"].items()}}


def test_each_name_reaches_its_model_and_no_name_the_first(
    http: httpx.Client, request_: Any, offline: Callable[[Any], Any], fruit_scores: Any
) -> None:
    hotels = {"columns": request_.columns}
    for page in ("/v1/predict", "/v1/models/hotels/predict", "/v1/models/dlrm/predict"):
        answer = http.post(page, content=orjson.dumps(hotels)).json()
        np.testing.assert_allclose(answer["predictions"], offline(request_), atol=1e-5)
    # with a query the request is answered by the application instead of the connection
    for page in ("/v1/models/shop/predict", "/v1/models/shop/predict?"):
        answer = http.post(page, json=columns_of(FRUIT)).json()
        np.testing.assert_allclose(answer["predictions"], fruit_scores, atol=1e-5)
    for page in ("/v1/models/shop/rank", "/v1/models/shop/rank?"):
        ranked = http.post(page, json=FRUIT).json()
        assert ranked["order"] == np.argsort(-fruit_scores, kind="stable").tolist()


@pytest.mark.parametrize("suffix", ["", "?"], ids=["connection", "application"])
def test_the_features_of_one_model_are_unknown_to_the_other(http: httpx.Client, suffix: str) -> None:
    for page in ("/v1/predict", "/v1/models/hotels/predict"):
        refused = http.post(page + suffix, json={"instances": [{"fruit": "apple"}]})
        assert (refused.status_code, "fruit" in refused.text) == (422, True), refused.text
    refused = http.post("/v1/models/shop/predict" + suffix, json={"instances": [{"item": "1"}]})
    assert (refused.status_code, "item" in refused.text) == (422, True), refused.text


@pytest.mark.parametrize(
    ("method", "page"),
    [
        ("POST", "/v1/models/books/predict"),
        ("POST", "/v1/models/books/rank"),
        ("POST", "/v1/models/books/admin/reload"),
        ("GET", "/v1/models/books/plan"),
        ("GET", "/v2/models/books"),
        ("GET", "/v2/models/books/stats"),
        ("GET", "/v2/models/books/versions/1/ready"),
        ("POST", "/v2/models/books/infer"),
        ("POST", "/v2/models/books/versions/1/infer"),
    ],
)
def test_an_unknown_name_is_404_with_those_that_are_known(http: httpx.Client, method: str, page: str) -> None:
    refused = http.request(method, page, json={} if method == "POST" else None)
    assert (refused.status_code, refused.json()) == (404, {"error": UNKNOWN})


def test_the_inference_protocol_has_both_models(http: httpx.Client) -> None:
    index = http.post("/v2/repository/index").json()
    assert [(m["name"], m["state"]) for m in index] == [("hotels", "READY"), ("shop", "READY")]
    assert [m["name"] for m in http.get("/v1/models").json()["models"]] == ["hotels", "shop"]
    for model in index:
        root = f"/v2/models/{model['name']}"
        for page in (root, f"{root}/versions/{model['version']}"):
            metadata = http.get(page).json()
            assert (metadata["name"], metadata["versions"]) == (model["name"], [model["version"]])
            assert http.get(f"{page}/ready").json() == {"name": model["name"], "ready": True}
            assert http.get(f"{page}/config").json()["name"] == model["name"]
            inputs = [
                {**tensor, "shape": [1, *tensor["shape"][1:]], "data": [0] * tensor["shape"][1]}
                for tensor in metadata["inputs"]
                if len(tensor["shape"]) == 2
            ]
            answer = http.post(f"{page}/infer", json={"inputs": inputs})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model_name"] == model["name"]
    versions = {model["name"]: model["version"] for model in index}
    assert http.get(f"/v2/models/shop/versions/{versions['hotels']}").status_code == 404
    # the alias is the default's, with and without a version
    assert http.get("/v2/models/dlrm").json()["name"] == "hotels"


def test_statistics_and_metrics_are_by_model(http: httpx.Client) -> None:
    def counts() -> tuple[dict[str, int], dict[str, float]]:
        stats = http.get("/v2/models/stats").json()["model_stats"]
        samples = MetricSamples(http.get("/metrics").text)
        requests = {m: samples.total("polyrec_requests_total", model=m) for m in ("hotels", "shop")}
        return {s["name"]: s["inference_count"] for s in stats}, requests

    rows, requests = counts()
    assert http.post("/v1/models/shop/rank", json=FRUIT).status_code == 200
    rows_after, requests_after = counts()
    assert rows_after == {"hotels": rows["hotels"], "shop": rows["shop"] + 3}
    assert requests_after == {"hotels": requests["hotels"], "shop": requests["shop"] + 1}
    (of_shop,) = http.get("/v2/models/shop/stats").json()["model_stats"]
    assert of_shop["name"] == "shop"


def test_a_metric_is_declared_once_and_those_of_the_server_have_no_model(http: httpx.Client) -> None:
    lines = http.get("/metrics").text.splitlines()
    declared = [line for line in lines if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert any(line.startswith("polyrec_connections ") for line in lines)
    assert [line for line in lines if line.startswith("polyrec_ready")] == [
        'polyrec_ready{model="hotels"} 1.0',
        'polyrec_ready{model="shop"} 1.0',
    ]


def test_every_page_below_a_name_is_that_models(http: httpx.Client) -> None:
    assert http.get("/v1/status").json()["model"] == "hotels"
    assert http.get("/v1/models/shop/status").json()["model"] == "shop"
    (path,) = http.get("/v1/models/shop/paths").json()["paths"]
    assert path["bundle"]["name"] == "shop"
    assert http.get("/v1/models/shop/route?rows=3").status_code == 200
    assert http.get("/v1/models/shop/nothing").status_code == 404
    assert http.get("/v1/models/shop").status_code == 404


def test_reloading_one_model_leaves_the_other_alone(http: httpx.Client) -> None:
    def generations() -> list[float]:
        samples = MetricSamples(http.get("/metrics").text)
        return [samples.total("polyrec_generations_total", model=m) for m in ("hotels", "shop")]

    hotels, shop = generations()
    assert http.post("/v1/models/shop/admin/reload").status_code == 401
    reloaded = http.post("/v1/models/shop/admin/reload", headers=ADMIN)
    assert reloaded.status_code == 200, reloaded.text
    assert generations() == [hotels, shop + 1]
    assert http.post("/v1/models/shop/rank", json=FRUIT).status_code == 200
    routing = {"default_budget_ms": 7_000}
    assert http.post("/v1/models/shop/admin/routing", json=routing, headers=ADMIN).status_code == 200
    samples = MetricSamples(http.get("/metrics").text)
    assert samples.total("polyrec_default_budget_seconds", model="hotels") == 60


def test_requests_of_both_at_once_are_answered_as_alone(
    server: ServerProcess, request_: Any, offline: Callable[[Any], Any], fruit_scores: Any
) -> None:
    hotels = orjson.dumps({"columns": request_.columns})
    fruit = orjson.dumps(columns_of(FRUIT))

    async def run() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            calls = [
                client.post("/v1/models/shop/predict", content=fruit)
                if i % 2
                else client.post("/v1/predict", content=hotels)
                for i in range(60)
            ]
            return [answer.json()["predictions"] for answer in await asyncio.gather(*calls)]

    for i, predictions in enumerate(asyncio.run(run())):
        expected = fruit_scores if i % 2 else offline(request_)
        np.testing.assert_allclose(predictions, expected, atol=1e-5)


def test_a_folder_of_models_is_served_in_the_order_of_its_names(
    bundle_dir: Path, shop_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(bundle_dir, tmp_path / "b")
    shutil.copytree(shop_dir, tmp_path / "a")
    with start({"models": tmp_path, "drain_grace_s": 0}) as child:
        models = httpx.get(f"{child.url}/v1/models", timeout=60).json()["models"]
        assert [(m["name"], m["aliases"]) for m in models] == [("a", ["dlrm"]), ("b", [])]


def test_a_model_that_cannot_be_opened_is_named(bundle: Bundle, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        with pytest.raises(StartFailed):
            start({"plans": f"good={bundle.path},bad={tmp_path / 'none.json'}"}, stderr=log)
        log.seek(0)
        assert "model 'bad': " in log.read()


@pytest.mark.long
def test_a_change_of_one_process_is_not_accepted_at_the_shared_port(bundle_dir: Path, shop_dir: Path) -> None:
    settings = {"plans": f"hotels={bundle_dir},shop={shop_dir}", "processes": 2, "drain_grace_s": 0}
    with start(settings, stderr=subprocess.DEVNULL) as child, httpx.Client(base_url=child.url) as client:
        assert client.post("/v1/models/shop/rank", json=FRUIT, timeout=60).status_code == 200
        assert client.post("/v1/models/shop/admin/reload").status_code == 421


def test_the_access_log_has_the_path_that_answered_by_name(shop_dir: Path, tmp_path: Path) -> None:
    settings = {"plans": f"shop={shop_dir}", "access_log": 1, "log_format": "json", "drain_grace_s": 0}
    with (tmp_path / "log").open("w+") as log:
        with start(settings | {"default_budget_ms": 60_000}, stderr=log) as child:
            for page in ("/v1/models/shop/rank", "/v1/models/shop/rank?"):
                assert httpx.post(child.url + page, json=FRUIT, timeout=60).status_code == 200
            assert httpx.get(child.url + "/v1/models/shop/%ff%00", timeout=60).status_code == 404
        log.seek(0)
        answers = [line for each in log if (line := orjson.loads(each)).get("status") == 200]
    assert [line["path"] for line in answers] == ["table@cpu"] * 2
