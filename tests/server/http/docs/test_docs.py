"""The document of a served model, and the page that shows it."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.operations.browser import PROGRAM, browser
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.app.served_model import version_number
from polyrec.server.child import ServerProcess
from polyrec.server.http.app import create_app
from polyrec.server.http.docs import FILES, POLICY
from tests.forking import start

jsonschema = pytest.importorskip("jsonschema")

FOLDER = Path(__file__).parents[4] / "server" / "http" / "docs"


@pytest.fixture(scope="module")
def document(client: Any) -> Any:
    return client.send("GET", "/openapi.json").json()


def body_of(document: Any, path: str) -> Any:
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]


def valid(document: Any, path: str, body: Any) -> bool:
    schema = {**body_of(document, path)["schema"], "components": document["components"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(body))


def test_rows_have_a_property_for_each_feature(document: Any, bundle: Bundle) -> None:
    schema, schemas = bundle.manifest.schema_, document["components"]["schemas"]
    assert set(schemas["ContextRow"]["properties"]) == set(schema.context.names)
    assert set(schemas["CandidateRow"]["properties"]) == set(schema.candidate.names)
    both = {*schema.context.names, *schema.candidate.names, "request_id"}
    assert set(schemas["FeatureRow"]["properties"]) == both
    assert set(schemas["FeatureColumns"]["properties"]) == both
    properties = schemas["FeatureRow"]["properties"]
    assert properties["price"]["type"] == ["number", "null"]
    assert "log1p, standardise" in properties["price"]["description"]
    assert properties["user_id"]["type"] == ["string", "null"]
    size = bundle.encoder.vocabularies["user_id"].size
    assert f"{size:,} known values" in properties["user_id"]["description"]
    assert properties["filters"]["maxItems"] == 64
    assert properties["filters"]["items"] == {"type": "string"}
    assert "table `item`" in properties["last_item"]["description"]


def test_the_document_names_the_model_and_its_versions(document: Any, bundle: Bundle) -> None:
    parameters = document["paths"]["/v2/models/{model}/versions/{version}/infer"]["post"]["parameters"]
    enums = {p["name"]: p["schema"]["enum"] for p in parameters if p.get("in") == "path"}
    version = bundle.manifest.version
    assert enums == {"model": ["trivago", "dlrm"], "version": [version_number(version), version]}
    tensors = document["components"]["schemas"]["InferenceInput"]["anyOf"]
    assert {t["properties"]["name"]["const"] for t in tensors} >= {"dense", "sparse", "context.sparse"}


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/rank", "/v2/models/{model}/infer"])
def test_every_example_is_valid_and_answered(client: Any, document: Any, path: str) -> None:
    examples = body_of(document, path)["examples"]
    assert examples
    probabilities = []
    for example in examples.values():
        assert valid(document, path, example["value"])
        answer = client.send("POST", path.format(model="trivago"), json=example["value"])
        assert answer.status_code == 200, answer.text
        probabilities.append(answer.json().get("predictions"))
    if path == "/v1/predict":
        assert probabilities[0] == pytest.approx(probabilities[1], abs=1e-6)


def test_examples_are_of_known_values(client: Any, document: Any) -> None:
    example = body_of(document, "/v1/predict")["examples"]["columns"]["value"]
    before = client.metric("polyrec_oov_lookups_total")
    client.send("POST", "/v1/predict", json=example)
    assert client.metric("polyrec_oov_lookups_total") == before
    client.send("POST", "/v1/predict", json={"instances": [{"user_id": "nobody"}]})
    assert client.metric("polyrec_oov_lookups_total") > before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/predict", {"instances": []}),
        ("/v1/predict", {"instances": [{"nobody": 1}]}),
        ("/v1/predict", {"instances": [{"price": "9"}]}),
        ("/v1/predict", {"instances": [{"filters": ["a"] * 65}]}),
        ("/v1/predict", {"columns": {}}),
        ("/v1/rank", {"candidates": {"user_id": ["u"]}}),
        ("/v1/rank", {"candidates": [{}], "context": {"item": "1"}}),
        ("/v1/rank", {"candidates": [{}], "top_k": 10**6}),
        ("/v2/models/{model}/infer", {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}),
        ("/v2/models/{model}/infer", {"inputs": [{"name": "dense", "shape": [1, 1], "datatype": "FP32"}]}),
    ],
)
def test_bodies_that_are_refused_are_not_valid_either(
    client: Any, document: Any, path: str, body: Any
) -> None:
    assert not valid(document, path, body)
    assert client.send("POST", path.format(model="trivago"), json=body).status_code in (400, 422)


def test_the_document_follows_a_reload(plan: Plan, client: Any) -> None:
    engine = Engine()
    asked = type(client)(client.runner, create_app(engine))
    loading = asked.send("GET", "/openapi.json").json()
    assert "ContextRow" not in loading["components"]["schemas"]
    engine.load(plan)
    first = asked.send("GET", "/openapi.json").json()
    assert "`trivago`" in first["info"]["description"]
    assert first == asked.send("GET", "/openapi.json").json()
    engine.model_name = "ads"
    engine.load(plan)
    assert "`ads`" in asked.send("GET", "/openapi.json").json()["info"]["description"]
    engine.close()


def test_the_page_and_its_files_are_served_under_a_policy(http: httpx.Client) -> None:
    for path, (name, media_type) in FILES.items():
        answer = http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == media_type
        assert answer.headers["content-security-policy"] == POLICY.decode()
        content = (FOLDER / name).read_bytes()
        if name.endswith(".gz"):
            assert answer.headers["content-encoding"] == "gzip"
            assert int(answer.headers["content-length"]) == len(content)
            content = gzip.decompress(content)
            for encoding in ("identity", "deflate"):  # which would take 30 ms of the event loop
                plain = http.get(path, headers={"accept-encoding": encoding})
                assert "content-encoding" not in plain.headers
                assert plain.content == content
        assert answer.content == content


def test_the_page_asks_nothing_of_other_hosts() -> None:
    page = (FOLDER / "page.html").read_text()
    for source in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert source == "data:," or f"/{source}" in FILES
    for name in ("page.html", "page.js", "page.css"):
        assert "//" not in (FOLDER / name).read_text()
    assert "<style" not in page
    assert "<script>" not in page


def test_the_vendored_page_has_its_license() -> None:
    folder = FOLDER / "swagger_ui"
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "SmartBear" in (folder / "NOTICE").read_text()
    assert (folder / "swagger-ui-bundle.js.LICENSE.txt").read_text()


def test_docs_can_be_switched_off(bundle_dir: Path) -> None:
    with start({"bundle": bundle_dir, "drain_grace_s": 0, "docs": "false"}) as server:
        for page in ("/openapi.json", *FILES):
            assert httpx.get(f"{server.url}{page}").status_code == 404
        assert httpx.get(f"{server.url}/v1/models").status_code == 200


FAINT = """(() => {
  const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const part = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(color[0]) + 0.7152 * part(color[1]) + 0.0722 * part(color[2]);
  };
  const contrast = (element) => {
    let behind = element, back;
    do back = rgb(getComputedStyle(behind).backgroundColor);
    while ((back[3] ?? 1) < 0.5 && (behind = behind.parentElement));
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(back)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const shown = [...document.querySelectorAll(".swagger-ui *")].filter((e) =>
    e.getClientRects().length && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  return shown.filter((e) => contrast(e) < 3).map((e) => `${e.className}: ${e.textContent}`);
})()"""
"""Texts that are hard to read before their background."""


@pytest.mark.long
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
def test_on_a_phone_in_the_dark_every_text_can_be_read_and_nothing_is_wider(server: ServerProcess) -> None:
    with browser() as tab:
        tab.size(390, 844, phone=True)
        tab.prefer("dark")
        tab.open(f"{server.url}/docs")
        tab.until("document.querySelectorAll('.opblock').length > 5")
        tab.run("document.querySelector('.opblock-summary-control').click()")
        tab.until("document.querySelectorAll('.headers .header-col').length > 1")
        assert tab.run(FAINT) == []
        assert tab.run("document.documentElement.scrollWidth") == 390
