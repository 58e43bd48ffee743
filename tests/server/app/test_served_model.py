from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.app.served_model import ALIAS, served_model, version_number
from polyrec.server.errors import NotFound
from polyrec.server.http.app import create_app
from tests.forking import start


def test_a_version_has_one_number_that_clients_can_parse() -> None:
    assert version_number("cd1301562f07") == "225481510498055" == str(int("cd1301562f07", 16))
    for version in ("f" * 15, "f" * 16, "v1", "1.0", "é\ud800", "CD1301562F07"):
        assert 0 <= int(version_number(version)) < 2**63
    # of every process and machine: clients compare it
    assert version_number("v1") == "65954165134575"
    assert version_number("v1") != version_number("v2")


@pytest.mark.parametrize(
    ("bundle", "operator", "name"),
    [
        ("trivago", None, "trivago"),
        ("trivago", "ads", "ads"),
        ("my shop/v2 é", None, "my-shop-v2"),
        ("/../", None, ALIAS),
        ("stats", None, ALIAS),
    ],
)
def test_a_name_fits_into_a_url(bundle: str, operator: str | None, name: str) -> None:
    assert served_model(bundle, "1", operator).name == name


def test_requests_name_the_model_or_its_alias_and_either_version() -> None:
    model = served_model("ads", "cd1301562f07", None)
    for name in ("ads", ALIAS):
        for version in (None, model.number, model.version):
            model.check(name, version)
    with pytest.raises(NotFound, match="unknown model 'other'; this server has 'ads'"):
        model.check("other")
    with pytest.raises(NotFound, match="model 'ads' has no version '9'; it serves '225481510498055'"):
        model.check("ads", "9")


def test_the_operators_name_is_the_same_everywhere(bundle_dir: Path) -> None:
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "model_name": "shop.ads-2"}
    with start(settings) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        (model,) = client.get("/v1/models").json()["models"]
        assert (model["name"], model["aliases"]) == ("shop.ads-2", [ALIAS])
        for name in (model["name"], ALIAS):
            metadata = client.get(f"/v2/models/{name}").json()
            assert (metadata["name"], metadata["versions"]) == (model["name"], [model["version_number"]])
            assert client.get(f"/v2/models/{name}/config").json()["name"] == model["name"]
            assert client.get(f"/v2/models/{name}/ready").json()["name"] == model["name"]
            inputs = [
                {**tensor, "shape": [1, tensor["shape"][1]], "data": [0] * tensor["shape"][1]}
                for tensor in metadata["inputs"][:2]
            ]
            answer = client.post(f"/v2/models/{name}/infer", json={"inputs": inputs}).json()
            assert answer["model_name"] == model["name"]
            assert answer["model_version"] == model["version_number"]
        assert client.get("/v2/models/trivago").status_code == 404
        assert client.post("/v2/models/trivago/infer", json={}).status_code == 404
        assert client.get("/v1/status").json()["model"] == model["name"]
        assert client.post("/v2/repository/index").json()[0]["name"] == model["name"]
        (statistics,) = client.get("/v2/models/stats").json()["model_stats"]
        assert statistics["name"] == model["name"]
        assert f'bundle="{model["name"]}"' in client.get("/metrics").text


def test_the_endpoint_that_needs_no_application_follows_the_name(plan: Plan) -> None:
    engine = Engine()
    app = create_app(engine)
    infer = b"/v2/models/dlrm/infer"
    assert infer in app.hot
    before = set(app.hot)
    engine.load(plan)
    assert set(app.hot) - before == {b"/v2/models/trivago/infer"}
    engine.model_name = "ads"
    engine.load(plan)
    assert set(app.hot) - before == {b"/v2/models/ads/infer"}
    assert set(create_app(engine).hot) == set(app.hot)
    engine.close()


def test_models_are_listed_with_schema_paths_and_quality(client: Any, engine: Engine) -> None:
    (model,) = client.send("GET", "/v1/models").json()["models"]
    manifest = engine.serving.bundle.manifest
    assert (model["name"], model["version"]) == (manifest.name, manifest.version)
    assert model["schema"] == json.loads(manifest.schema_.model_dump_json())
    (path,) = model["paths"]
    assert path["name"] == "table@cpu"
    assert path["quality"] == model["quality"] == manifest.metrics["test"]["information"]
    assert model["metric"] == "information"
    forms = {(i["name"], i["form"], i["optional"]) for i in model["inputs"]}
    assert {("dense", "plain", False), ("sparse", "plain", False)} <= forms
    assert {("filters.values", "plain", True), ("context_lengths", "ranking", True)} <= forms
