"""Ids in every answer, and the access log's lines of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from polyrec.server.app.engine import Engine
from polyrec.server.http.connection.access_log import MAX_ROUTE_LENGTH, AccessLog, AnsweredBy
from polyrec.server.http.connection.limits import ConnectionLimits
from tests.forking import start
from tests.server.http.connection.wire import head, local

BODY = b'{"instances": [{}]}'
THREE = b'{"instances": [{}, {}, {}]}'
ID = re.compile(rb"\r\nx-request-id: ([^\r]*)\r\n")
LOGGED = re.compile(
    r"request_id=(\S+) method=(\S+) route=(\S+) status=(\d+) ms=([\d.]+) path=(\S+) reason=(\S+)"
    r" rows=(\S+) client=(\S+)"
)


def fields_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [r.fields for r in caplog.records if r.name == "polyrec.requests"]  # type: ignore[attr-defined]


Talk = Callable[..., bytes]


@pytest.fixture
def talk(engine: Engine, client: Any) -> Talk:
    """Sends bytes to a server in this process and returns its answers."""

    def send(raw: bytes, access_log: AccessLog | None = None) -> bytes:
        async def exchange() -> bytes:
            limits = ConnectionLimits(head_s=0.3, body_s=0.3)
            async with local(engine, limits, access_log) as server, asyncio.timeout(20):
                return await server.exchange(raw)

        answer: bytes = client.runner.run(exchange())
        return answer

    return send


START = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\n"
GIVEN = b"X-Request-Id: shop-7"


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        START,
        START + b"X-Request-Id: a b\r\nContent-Length: 3\r\nConnection: close\r\n\r\n{}",
        START + b"X-Request-Id: a\r\nX-Request-Id: b\r\nConnection: close\r\n\r\n",
        b"POST /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"BREW /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ],
)
def test_every_answer_has_an_id(talk: Talk, raw: bytes) -> None:
    (made,) = ID.findall(talk(raw))
    assert re.fullmatch(rb"[0-9a-f]{12}-[0-9a-f]+", made)


@pytest.mark.parametrize(
    "raw",
    [
        head("/v1/predict", len(BODY), GIVEN, b"Connection: close") + BODY,
        head("/v1/predict", 3, GIVEN, b"Connection: close") + b"{}}",
        head("/v1/predict", 10, GIVEN),
        head("/v1/predict", 10**9, GIVEN, b"Connection: close"),
        b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + GIVEN + b"\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + GIVEN + b"\r\n\r\n",
    ],
)
def test_a_clients_id_comes_back_whatever_the_answer_is(talk: Talk, raw: bytes) -> None:
    assert ID.findall(talk(raw)) == [b"shop-7"]


def test_answers_of_one_connection_have_ids_of_their_own(talk: Talk) -> None:
    page = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    given = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + GIVEN + b"\r\n\r\n"
    predict = head("/v1/predict", len(BODY)) + BODY
    ids = ID.findall(talk(page + given + predict + page + b"no request\r\n\r\n"))
    assert len(set(ids)) == len(ids) == 5
    assert ids[1] == b"shop-7"


def test_every_kind_of_answer_has_its_line(
    engine: Engine, talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    path = engine.serving.paths[0].name
    version = engine.serving.version
    infer = f"/v2/models/dlrm/versions/{version}/infer"
    for raw, expected in (
        (head("/v1/predict?token=secret", len(BODY)) + BODY, ("POST", "/v1/predict", 200, path, 1)),
        (head("/v1/predict", len(THREE)) + THREE, ("POST", "/v1/predict", 200, path, 3)),
        (head("/v1/predict", 3) + b"{}}", ("POST", "/v1/predict", 400, None, None)),
        (head(infer, 2) + b"{}", ("POST", "/v2/models/{model}/versions/{version}/infer", 400, None, None)),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/livez", 200, None, None)),
        (b"GET /no?q=secret HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/no", 404, None, None)),
    ):
        caplog.clear()
        talk(raw + b"no request\r\n\r\n", AccessLog(1))
        first, last = fields_of(caplog)
        assert tuple(first[key] for key in ("method", "route", "status", "path", "rows")) == expected
        assert first["client"] == (first["rows"] and "127.0.0.1")
        assert first["ms"] > 0
        assert (last["method"], last["route"], last["status"]) == (None, None, 400)
        assert first["request_id"] != last["request_id"]


def test_a_sampled_share_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    drawn = iter([0.0, 0.2, 0.3, 0.9])
    access_log = AccessLog(0.3, lambda: next(drawn))
    assert [access_log.samples() for _ in range(4)] == [True, True, False, False]
    access_log.write(
        b"r-1", b"GET", "/" + "x" * 1000, 200, 0.0015, AnsweredBy("table@cpu", "load", 23, "shop")
    )
    (fields,) = fields_of(caplog)
    assert fields == {
        "request_id": "r-1",
        "method": "GET",
        "route": "/" + "x" * (MAX_ROUTE_LENGTH - 1),
        "status": 200,
        "ms": 1.5,
        "path": "table@cpu",
        "reason": "load",
        "rows": 23,
        "client": "shop",
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_server_writes_the_lines_in_its_format(bundle_dir: Path, tmp_path: Path, log_format: str) -> None:
    file = tmp_path / "log"
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "access_log": 1, "log_format": log_format}
    with file.open("w") as stderr, start(settings, stderr) as server:
        answer = httpx.post(
            f"{server.url}/v1/predict?t=secret",
            content=b'{"instances": [{"x": "body"}]}',
            headers={"Authorization": "Bearer secret", "X-Request-Id": "shop-7"},
        )
        assert answer.status_code == 422
        assert answer.headers["x-request-id"] == "shop-7"
    (line,) = [line for line in file.read_text().splitlines() if "polyrec.requests" in line]
    assert "secret" not in line
    assert "body" not in line
    if log_format == "json":
        content = json.loads(line)
        found = [content[key] for key in ("request_id", "method", "route", "status", "path", "reason")]
        assert found == ["shop-7", "POST", "/v1/predict", 422, None, None]
        assert content["logger"] == "polyrec.requests"
    else:
        match = LOGGED.search(line)
        assert match is not None
        assert match.group(1, 2, 3, 4, 6, 7) == ("shop-7", "POST", "/v1/predict", "422", "-", "-")
