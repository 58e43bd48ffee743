"""The OpenAPI document against the routes of the application and what the server answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import Plan, save_plan
from polyrec.planner.routing.query import DEGRADED
from polyrec.server.access.access import Access
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.http.app import create_app
from polyrec.server.http.connection.limits import ConnectionLimits
from polyrec.server.http.documents import DegradedReason, StateName
from polyrec.server.http.openapi import CONNECTION_ERRORS, Endpoint
from tests.server.http.connection.wire import local
from tests.server.placing import ALLOWED, placed_plan

jsonschema = pytest.importorskip("jsonschema")

INFER = "/v2/models/dlrm/infer"
ROW = b'{"instances": [{}]}'
LENGTH = "inference-header-content-length"


@dataclass(frozen=True)
class Contract:
    """Checks requests and responses against an OpenAPI document."""

    document: dict[str, Any]

    @cached_property
    def operations(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By method and path."""
        paths = self.document["paths"]
        return {(method.upper(), path): paths[path][method] for path in paths for method in paths[path]}

    def find(self, method: str, path: str) -> tuple[str, str]:
        """The operation of a request: a path without parameters comes before one with."""
        return min(
            (
                key
                for key in self.operations
                if key[0] == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", key[1]), path)
            ),
            key=lambda key: key[1].count("{"),
        )

    def resolve(self, node: dict[str, Any]) -> dict[str, Any]:
        """Returns the part of the document that a reference names."""
        if "$ref" not in node:
            return node
        found: Any = self.document
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return dict(found)

    def validate(self, schema: dict[str, Any], value: Any) -> None:
        whole = {**schema, "components": self.document["components"]}
        jsonschema.Draft202012Validator(whole).validate(value)

    def check_request(self, key: tuple[str, str], request: httpx.Request) -> None:
        """Parameters and body of a request that the server takes."""
        operation = self.operations[key]
        given = {"query": request.url.params, "header": request.headers}
        parameters = [self.resolve(parameter) for parameter in operation.get("parameters", ())]
        for parameter in parameters:
            value = given.get(parameter["in"], {}).get(parameter["name"])
            if value is not None:
                number = parameter["schema"].get("type") in ("number", "integer")
                self.validate(parameter["schema"], json.loads(value) if number else value)
        names = {p["name"] for p in parameters if p["in"] == "query"}
        assert set(request.url.params) <= names
        if "requestBody" in operation:
            body = operation["requestBody"]
            sent = _json_part(request.content, request.headers)
            assert sent or not body.get("required") or request.headers[LENGTH] == "0"
            if sent:
                self.validate(body["content"]["application/json"]["schema"], json.loads(sent))

    def check_response(
        self, key: tuple[str, str], status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        """Status, media type, headers and body."""
        response = self.resolve(self.operations[key]["responses"][str(status)])
        for name, header in response.get("headers", {}).items():
            value = headers.get(name.lower())
            assert value is not None or not header.get("required"), name
            if value is not None:
                integer = header["schema"].get("type") == "integer"
                self.validate(header["schema"], int(value) if integer else value)
        media = response["content"][headers["content-type"]]
        if headers["content-type"] == "application/json":
            self.validate(media["schema"], json.loads(body))
        elif LENGTH in headers:
            json_schema = response["content"]["application/json"]["schema"]
            self.validate(json_schema, json.loads(_json_part(body, headers)))

    def check(self, answer: httpx.Response) -> None:
        """A request and its response; a request that succeeds must be as documented."""
        key = self.find(answer.request.method, answer.request.url.path)
        if answer.status_code == 200:
            self.check_request(key, answer.request)
        self.check_response(key, answer.status_code, answer.headers, answer.content)


def _json_part(body: bytes, headers: Mapping[str, str]) -> bytes:
    return body[: int(headers[LENGTH])] if LENGTH in headers else body


@pytest.fixture(scope="module")
def contract(engine: Engine) -> Contract:
    return Contract(create_app(engine).openapi())


@dataclass(frozen=True)
class CheckedClient:
    """Sends requests and checks every response. seen: the successful operations."""

    client: Any
    contract: Contract
    seen: set[tuple[str, str]]

    def send(self, method: str, path: str, **named: Any) -> httpx.Response:
        answer: httpx.Response = self.client.send(method, path, **named)
        self.contract.check(answer)
        if answer.status_code == 200:
            self.seen.add(self.contract.find(method, path.partition("?")[0]))
        return answer

    def expect(self, status: int, method: str, path: str, **named: Any) -> httpx.Response:
        answer = self.send(method, path, **named)
        assert answer.status_code == status, answer.text
        return answer


@pytest.fixture
def checked(client: Any, contract: Contract) -> CheckedClient:
    return CheckedClient(client, contract, set())


@pytest.fixture
def infer(request_: Any, tensors: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """A valid inference request."""
    kinds = {"f": "FP32", "i": "INT64"}
    return {
        "inputs": [
            {"name": n, "datatype": kinds[a.dtype.kind], "shape": list(a.shape), "data": a.tolist()}
            for n, a in tensors(request_).items()
        ]
    }


def test_document_has_every_route_but_files_of_pages(engine: Engine, contract: Contract) -> None:
    app = create_app(engine)
    routes = set()
    for route in app.routes:
        assert isinstance(route, Endpoint)
        assert route.methods is not None
        routes |= {(method, route.path) for method in route.methods - {"HEAD"}}
    files = {(method, path) for method, path in routes if path.endswith((".css", ".js"))}
    assert files
    assert routes - files == set(contract.operations)
    for path in app.hot:
        assert contract.find("POST", path.decode())


def test_document_is_well_formed(contract: Contract) -> None:
    document = contract.document
    assert document["openapi"].startswith("3.1")
    for reference in re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)):
        assert contract.resolve({"$ref": reference})
    used = set(re.findall(r"#/components/\w+/\w+", json.dumps(document)))
    for kind in ("schemas", "responses"):
        assert {f"#/components/{kind}/{name}" for name in document["components"][kind]} <= used
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = [operation["operationId"] for operation in contract.operations.values()]
    assert len(set(ids)) == len(ids)
    tags = {tag["name"] for tag in document["tags"]}
    for operation in contract.operations.values():
        assert operation["summary"]
        assert set(operation["tags"]) <= tags
        assert {str(status) for status in CONNECTION_ERRORS} <= set(operation["responses"])


def test_document_names_the_values_of_the_code() -> None:
    assert get_args(DegradedReason) == tuple(reason.value for reason in DEGRADED)
    assert get_args(StateName) == tuple(state.value for state in LifecycleState)


def test_document_is_served(http: httpx.Client, contract: Contract) -> None:
    answer = http.get("/openapi.json")
    assert answer.json() == contract.document
    head = http.head("/openapi.json")
    assert head.status_code == 200
    assert head.headers["content-length"] == answer.headers["content-length"]


def test_reading_endpoints_answer_as_documented(checked: CheckedClient, bundle: Bundle) -> None:
    values = {"model": "dlrm", "version": bundle.manifest.version}
    pages = {key for key in checked.contract.operations if key[0] == "GET" and "/admin/" not in key[1]}
    for method, path in pages:
        checked.expect(200, method, path.format_map(values))
    checked.expect(200, "GET", "/v1/route?rows=23&budget_ms=50&quality=required")
    checked.expect(200, "GET", "/v1/status?since=1.5")
    checked.expect(200, "POST", "/v2/repository/index")
    assert checked.seen == pages | {("POST", "/v2/repository/index")}
    for path in ("/v1/route?rows=0", "/v1/route?row=1", "/v1/status?since=x"):
        checked.expect(400, "GET", path)
    for path in ("/v2/models/other", "/v2/models/dlrm/versions/9/config", "/v2/models/other/stats"):
        checked.expect(404, "GET", path)
    for action in ("load", "unload"):
        checked.expect(403, "POST", f"/v2/repository/models/dlrm/{action}")


def test_predictions_are_as_documented(
    checked: CheckedClient, request_: Any, infer: dict[str, Any], bundle: Bundle
) -> None:
    headers = {"x-latency-budget-ms": "1234.5", "x-polyrec-priority": "0", "x-polyrec-quality": "any"}
    candidates = {"context": request_.context, "candidates": request_.candidates}
    for path, body in (
        ("/v1/predict", {"instances": request_.rows}),
        ("/v1/predict", {"columns": request_.columns}),
        ("/v1/rank", candidates),
        ("/v1/rank", {"candidates": [{}, {}], "top_k": 1}),
        (INFER, infer),
        (INFER, infer | {"id": "q1", "parameters": {"timeout": 10**6, "priority": 0, "other": "ignored"}}),
        (INFER, infer | {"outputs": [{"name": "probability", "parameters": {"binary_data": True}}]}),
        (f"/v2/models/dlrm/versions/{bundle.manifest.version}/infer", infer),
    ):
        checked.expect(200, "POST", path, json=body, headers=headers)


def test_binary_tensors_are_as_documented(checked: CheckedClient, request_: Any, tensors: Any) -> None:
    arrays = tensors(request_)
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32" if array.dtype.kind == "f" else "INT64",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = header + b"".join(array.tobytes() for array in arrays.values())
    answer = checked.expect(200, "POST", INFER, content=body, headers={LENGTH: str(len(header))})
    assert answer.headers["content-type"] == "application/octet-stream"
    raw = b"".join(arrays[name].tobytes() for name in ("dense", "sparse"))
    checked.expect(200, "POST", INFER, content=raw, headers={LENGTH: "0"})


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/rank", INFER])
def test_rejected_predictions_are_as_documented(
    checked: CheckedClient, infer: dict[str, Any], path: str
) -> None:
    body = {"/v1/predict": {"instances": [{}]}, "/v1/rank": {"candidates": [{}]}, INFER: infer}[path]
    for headers, status in (
        ({"x-latency-budget-ms": "soon"}, 400),
        ({"x-polyrec-priority": "1"}, 403),
        ({"x-polyrec-quality": "required"}, 403),
        ({"x-latency-budget-ms": "1e-6"}, 504),
    ):
        checked.expect(status, "POST", path, json=body, headers=headers)
    checked.expect(400, "POST", path, content=b"{")
    checked.expect(413, "POST", path, content=b" " * 2**25)
    if path == INFER:
        sparse = next(i for i in infer["inputs"] if i["name"] == "sparse")
        sparse["data"] = [[10**9] * len(row) for row in sparse["data"]]
        checked.expect(422, "POST", path, json=infer)
        checked.expect(404, "POST", "/v2/models/other/infer", json=infer)
    else:
        checked.expect(422, "POST", path, content=b'{"nothing": 1}')


def test_endpoints_of_a_loading_server_answer_as_documented(contract: Contract, client: Any) -> None:
    loading = CheckedClient(type(client)(client.runner, create_app(Engine())), contract, set())
    for method, path in contract.operations:
        if "admin" not in path:
            body = {"content": ROW} if method == "POST" else {}
            answer = loading.send(method, path.format(model="dlrm", version="1"), **body)
            assert answer.status_code in (200, 403, 503)


def test_rejected_clients_are_answered_as_documented(
    contract: Contract, client: Any, opened: Callable[[Plan], Engine], plan: Plan, tmp_path: Path
) -> None:
    engine = opened(plan)
    file = tmp_path / "tokens.json"
    limited = {"name": "shop", "token": "a token that is long enough", "requests_per_second": 0.01}
    file.write_text(json.dumps({"clients": [limited]}))
    engine.access = Access(engine.metrics, file=file)
    checked = CheckedClient(type(client)(client.runner, create_app(engine)), contract, set())
    checked.expect(401, "POST", "/v1/predict", content=ROW)
    allowed = {"authorization": f"Bearer {limited['token']}"}
    checked.expect(200, "POST", "/v1/predict", content=ROW, headers=allowed)
    checked.expect(429, "POST", "/v1/predict", content=ROW, headers=allowed)
    checked.expect(403, "POST", "/v1/admin/drain", headers=allowed)


def test_administration_is_as_documented(
    contract: Contract, client_of: Callable[[Plan], Any], plan: Plan, paged: Bundle, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    path = plan.paths[0].model_copy(update={"bundle": plan.paths[0].bundle.absolute()})
    save_plan(plan.model_copy(update={"paths": (path,)}), file)
    checked = CheckedClient(client_of(placed_plan(paged, tmp_path)), contract, set())
    item = {"ids": [1], "rows": [[0.5] * 64]}

    def act(status: int, name: str, body: Any) -> None:
        checked.expect(status, "POST", f"/v1/admin/{name}", json=body, headers=ALLOWED)

    checked.expect(200, "GET", "/v1/plan")
    act(200, "embeddings", {"tables": {"item": item}})
    act(422, "embeddings", {"tables": {"item": item, "nothing": item}})
    act(200, "routing", {"policy": "static:table@cpu", "default_budget_ms": 5000})
    act(422, "routing", {"policy": "best"})
    act(200, "note", {"text": "sale today"})
    act(422, "note", {"text": ""})
    act(200, "reload", {"plan": str(file)})
    act(422, "reload", {"plan": "/none"})
    act(200, "rollback", {})
    act(200, "rollout/start", {"plan": str(file), "share": 0.1, "by": "user_id"})
    act(409, "reload", {"plan": str(file)})
    act(200, "rollout/share", {"share": 0.2})
    checked.expect(200, "GET", "/v1/admin/rollout", headers=ALLOWED)
    act(200, "rollout/rollback", {})
    act(409, "rollout/promote", {})
    act(422, "rollout/start", {"plan": str(file), "by": "nothing"})
    act(200, "rollout/start", {"plan": str(file)})
    act(200, "rollout/promote", {"reason": "ticket 7"})
    checked.expect(200, "GET", "/v1/admin/rollout", headers=ALLOWED)
    checked.expect(401, "GET", "/v1/admin/rollout")
    checked.expect(200, "POST", "/v1/admin/drain", headers=ALLOWED)
    checked.expect(503, "GET", "/readyz")
    checked.expect(400, "POST", "/v1/admin/drain", content=b"{", headers=ALLOWED)
    checked.expect(413, "POST", "/v1/admin/drain", content=b" " * 2**17, headers=ALLOWED)
    checked.expect(401, "POST", "/v1/admin/drain")
    admin = {key for key in contract.operations if "/admin/" in key[1]}
    assert admin <= checked.seen


START = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\n"
REJECTED = [
    (400, b"POST /v1/predict HTTP/1.1\r\n\r\n"),
    (408, START),
    (408, START + b"Content-Length: 10\r\n\r\n"),
    (414, b"POST /v1/predict?" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n"),
    (417, START + b"Expect: 200-ok\r\n\r\n"),
    (431, START + b"X-Header: 1\r\n" * 300 + b"\r\n"),
    (501, START + b"Transfer-Encoding: gzip\r\n\r\n"),
    (505, b"POST /v1/predict HTTP/2.0\r\nHost: x\r\n\r\n"),
]
"""Requests that the connection rejects, and with which status."""


@pytest.mark.parametrize(("status", "raw"), REJECTED, ids=lambda v: v if isinstance(v, int) else "")
def test_rejections_by_the_connection_are_documented(
    engine: Engine, contract: Contract, status: int, raw: bytes
) -> None:
    async def exchange() -> bytes:
        async with local(engine, ConnectionLimits(head_s=0.3, body_s=0.3)) as server:
            return await server.exchange(raw)

    head, _, body = asyncio.run(exchange()).partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    assert int(line.split()[1]) == status
    assert HTTPStatus(status) in CONNECTION_ERRORS
    headers = {name.lower(): value for name, value in (given.split(": ", 1) for given in lines)}
    assert "x-request-id" in headers
    contract.check_response(("POST", "/v1/predict"), status, headers, body)
