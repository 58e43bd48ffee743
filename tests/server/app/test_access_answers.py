"""Tokens, rights and rates in an application, and in a real server."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.planner.plan import Plan
from polyrec.server.access.access import Access
from polyrec.server.access.rates import GUESS_BURST
from polyrec.server.app.engine import Engine
from polyrec.server.child import ServerProcess
from polyrec.server.http.admin import Admin
from polyrec.server.http.app import create_app
from tests.forking import start
from tests.server.access.test_access import (
    ADMIN_TOKEN,
    CLIENTS,
    HOURLY,
    ONCALL,
    RANKING,
    SHOP,
    sent,
    write,
)

BODY = b'{"instances": [{}]}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens.json", {"clients": CLIENTS})


@pytest.fixture
def guarded(client: Any, file: Path, plan: Plan) -> Iterator[Any]:
    """A client of an application that asks for tokens, and cuts budgets to 80 s."""
    engine = Engine()
    limits = plan.limits.model_copy(update={"max_budget_ms": 80_000.0})
    engine.load(plan.model_copy(update={"limits": limits}))
    engine.access = Access(engine.metrics, file, ADMIN_TOKEN)
    yield type(client)(client.runner, create_app(engine, Admin(engine)))
    engine.close()


@pytest.mark.parametrize("page", ["/v1/predict", "/v1/rank", "/v2/models/dlrm/infer"])
def test_every_prediction_needs_a_token_before_its_body_is_read(guarded: Any, page: str) -> None:
    for token in (None, "wrong-token-0123456789"):
        answer = guarded.post(page, b"{" * 100, sent(token))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert guarded.post(page, b"{" * 100, sent(RANKING)).status_code == 400


def test_pages_that_predict_nothing_need_no_token(guarded: Any) -> None:
    for page in ("/livez", "/readyz", "/metrics", "/v1/plan", "/v2/models/dlrm", "/v1/route?rows=2"):
        assert guarded.send("GET", page).status_code == 200


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        (SHOP, {}, 200),
        (SHOP, {"x_polyrec_priority": "0", "x_polyrec_quality": "any"}, 200),
        (SHOP, {"x_polyrec_priority": "1"}, 403),
        (SHOP, {"x_polyrec_quality": "required"}, 403),
        (RANKING, {"x_polyrec_priority": "1", "x_polyrec_quality": "required"}, 200),
        (ONCALL, {"x_polyrec_priority": "1"}, 403),
        (ADMIN_TOKEN, {}, 200),
    ],
)
def test_headers_ask_for_what_the_token_allows(
    guarded: Any, token: str, headers: dict[str, str], status: int
) -> None:
    answer = guarded.post("/v1/predict", BODY, sent(token, **headers))
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("token", "parameters", "status"),
    [
        (SHOP, {}, 200),
        (SHOP, {"priority": 0, "quality": "any", "timeout": 0}, 200),
        (SHOP, {"priority": 1}, 403),
        (SHOP, {"quality": "required"}, 403),
        (RANKING, {"priority": 1, "quality": "required"}, 200),
    ],
)
def test_parameters_of_a_body_are_judged_like_headers(
    guarded: Any, tensors: Any, request_: Any, token: str, parameters: dict[str, Any], status: int
) -> None:
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32" if array.dtype.kind == "f" else "INT64",
            "data": array.ravel().tolist(),
        }
        for name, array in tensors(request_).items()
    ]
    body = orjson.dumps({"inputs": inputs, "parameters": parameters})
    answer = guarded.post("/v2/models/dlrm/infer", body, sent(token))
    assert answer.status_code == status, answer.text
    if status == 403:
        assert f"parameter '{next(iter(parameters))}'" in answer.json()["error"]


def test_a_budget_beyond_the_cap_is_cut_and_counted(guarded: Any) -> None:
    for budget_ms, capped in (("79999", 0), ("3600000", 1)):
        headers = sent(RANKING, x_latency_budget_ms=budget_ms)
        assert guarded.post("/v1/predict", BODY, headers).status_code == 200
        assert guarded.metric("polyrec_capped_budgets_total") == capped
    assert guarded.send("GET", "/v1/route?budget_ms=3600000").json()["budget_s"] == 80.0


def test_an_act_of_administration_leaves_one_line_without_secrets(
    guarded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for token in (ONCALL, ADMIN_TOKEN, RANKING, None):
            guarded.post("/v1/admin/routing", b"{}", sent(token))
        guarded.post("/v1/admin/reload", b'{"plan": "/no/such/plan.json"}', sent(ONCALL))
    said = [r.getMessage() for r in caplog.records if r.name == "polyrec.audit"]
    assert said == [
        "routing by 'on-call' from 127.0.0.1: 200",
        "routing by 'POLYREC_ADMIN_TOKEN' from 127.0.0.1: 200",
        "reload by 'on-call' from 127.0.0.1: 422: the plan was not loaded, the old one is still served: "
        "no plan file 'plan.json'",
    ]
    assert not [line for line in caplog.messages if ADMIN_TOKEN in line or ONCALL in line]


@dataclass(frozen=True)
class Guarded:
    """A real server that asks for tokens, its file, and what it writes to standard error."""

    child: ServerProcess
    file: Path
    log: Path

    def ask(self, http: httpx.Client, token: str | None, **headers: str) -> httpx.Response:
        return http.post("/v1/predict", content=BODY, headers=sent(token, **headers))


@pytest.fixture
def served(bundle_dir: Path, file: Path, tmp_path: Path) -> Iterator[Guarded]:
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000, "tokens": file}
    log = tmp_path / "log"
    with log.open("w") as stderr, start(settings | {"admin_token": ADMIN_TOKEN}, stderr) as child:
        yield Guarded(child, file, log)


def test_a_real_server_answers_401_403_and_429(served: Guarded) -> None:
    with httpx.Client(base_url=served.child.url, timeout=30) as http:
        assert served.ask(http, None).status_code == 401
        assert served.ask(http, SHOP, x_polyrec_priority="1").status_code == 403
        assert served.ask(http, RANKING, x_polyrec_priority="1").status_code == 200
        assert served.ask(http, HOURLY).status_code == 200
        limited = served.ask(http, HOURLY)
        assert limited.status_code == 429
        assert int(limited.headers["retry-after"]) > 3000
        assert limited.json()["error"].startswith("client 'hourly' is over its rate; retry in 3")
        guesses = [served.ask(http, f"guess-{i:016}").status_code for i in range(3 * GUESS_BURST)]
        assert guesses[:GUESS_BURST] == [401] * GUESS_BURST
        assert 429 in guesses
        assert served.ask(http, RANKING).status_code == 200
        found = MetricSamples(http.get("/metrics").text)
        assert found.total("polyrec_access_refused_total") == 3 + len(guesses)
        assert found.total("polyrec_access_refused_total", reason="limited") == 1
    said = served.log.read_text()
    assert "429 for client 'hourly' from 127.0.0.1" in said
    assert "guess-0" not in said
    assert RANKING not in said


def test_a_real_server_reads_its_tokens_again_on_sighup(served: Guarded) -> None:
    with httpx.Client(base_url=served.child.url, timeout=30) as http:
        assert served.ask(http, RANKING).status_code == 200
        write(served.file, b"{")
        served.child.process.send_signal(signal.SIGHUP)
        while "tokens were not reloaded" not in served.log.read_text():
            assert served.child.process.poll() is None
        assert served.ask(http, RANKING).status_code == 200
        write(served.file, {"clients": [{"name": "other", "token": ONCALL}]})
        served.child.process.send_signal(signal.SIGHUP)
        while served.ask(http, RANKING).status_code == 200:
            assert served.child.process.poll() is None
        assert served.ask(http, RANKING).status_code == 401
        assert served.ask(http, ONCALL).status_code == 200
