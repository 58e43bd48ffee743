"""Pages, statuses and error bodies of the whole application, in this process."""

from __future__ import annotations

from typing import Any

import pytest

from planner.plan import Plan
from server.engine import Engine, State
from server.http.app import create_app


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/nothing", 404, "no page '/nothing'"),
        ("GET", "/v1/predict/", 404, "no page"),
        ("GET", "/v1/predict", 405, "method GET is not allowed here; use POST"),
        ("DELETE", "/v1/rank", 405, "use POST"),
        ("POST", "/livez", 405, "use GET"),
        ("GET", "/v2/models/dlrm/infer", 405, "use POST"),
        ("GET", "/v2/models/other", 404, "unknown model 'other'; this server has 'dlrm'"),
        ("POST", "/v2/models/other/infer", 404, "unknown model 'other'"),
        ("GET", "/v2/models/dlrm/versions/9", 404, "model 'dlrm' has no version '9'"),
        ("POST", "/v2/models/dlrm/versions/9/infer", 404, "model 'dlrm' has no version '9'"),
        ("POST", "/v2/repository/models/dlrm/load", 403, "not allowed"),
        ("POST", "/v2/repository/models/dlrm/unload", 403, "not allowed"),
    ],
)
def test_what_is_not_there_is_said_in_json(
    client: Any, method: str, path: str, status: int, says: str
) -> None:
    content = b'{"inputs": []}' if method == "POST" else None
    answer = client.send(method, path, content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert says in answer.json()["error"]
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/rank", "/v2/models/dlrm/infer"])
@pytest.mark.parametrize(
    ("headers", "content", "status", "says"),
    [
        ({}, b"{", 400, "truncated"),
        ({}, b"", 400, "the body is empty"),
        ({"content-encoding": "br"}, b"{}", 400, "'br' is not supported"),
        ({"content-encoding": "gzip"}, b"{}", 400, "not gzip"),
        ({"content-length": "99999999"}, b"{}", 413, "99999999 bytes; the limit is 16777216"),
    ],
)
def test_every_hot_endpoint_refuses_a_bad_body(
    client: Any, path: str, headers: dict[str, str], content: bytes, status: int, says: str
) -> None:
    answer = client.post(path, content, headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert says in answer.json()["error"]
    assert answer.headers["x-polyrec-path"] == "table@cpu"


@pytest.mark.parametrize("budget", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_budget_that_is_no_time_is_refused(client: Any, budget: str) -> None:
    answer = client.post("/v1/predict", b'{"instances": [{}]}', {"x-latency-budget-ms": budget})
    assert answer.status_code == 400
    assert "X-Latency-Budget-Ms" in answer.json()["error"]


def test_a_budget_too_small_to_be_met_gives_504(client: Any) -> None:
    answer = client.post("/v1/predict", b'{"instances": [{}]}', {"x-latency-budget-ms": "0.000001"})
    assert answer.status_code == 504
    assert "passed while the query waited" in answer.json()["error"]


def test_the_default_budget_is_the_plans(plan: Plan) -> None:
    engine = Engine()
    engine.load(plan.model_copy(update={"default_budget_ms": 12.5}))
    assert engine.default_budget_s == 0.0125
    engine.close()


def test_an_overfull_queue_gives_429_with_a_time_to_retry(plan: Plan, client: Any) -> None:
    engine = Engine()
    limits = plan.limits.model_copy(update={"max_request_rows": 4, "max_queued_rows": 4})
    engine.load(plan.model_copy(update={"limits": limits}))
    body = b'{"instances": [{}, {}, {}, {}]}'
    crowd = type(client)(client.runner, create_app(engine))
    answers = crowd.together([("POST", "/v1/predict", {"content": body})] * 5)
    statuses = [a.status_code for a in answers]
    assert set(statuses) == {200, 429}
    refused = answers[statuses.index(429)]
    assert int(refused.headers["retry-after"]) >= 1
    assert crowd.post("/v1/predict", body).status_code == 200
    assert 'outcome="overloaded",path="table@cpu"}' in crowd.send("GET", "/metrics").text
    engine.close()


def test_a_server_that_loads_is_alive_but_not_ready(client: Any) -> None:
    loading = type(client)(client.runner, create_app(Engine()))
    assert loading.send("GET", "/livez").status_code == 200
    assert loading.send("GET", "/v2/health/live").status_code == 200
    for method, path in (
        ("GET", "/readyz"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v1/plan"),
        ("GET", "/v2/models/dlrm"),
        ("GET", "/v2/models/dlrm/ready"),
        ("POST", "/v1/predict"),
        ("POST", "/v1/rank"),
        ("POST", "/v2/models/dlrm/infer"),
    ):
        answer = loading.send(method, path, content=b"{}" if method == "POST" else None)
        assert answer.status_code == 503, path
        assert "loading" in answer.json()["error"]
    assert loading.send("GET", "/v1/paths").json() == {"paths": []}
    assert loading.send("POST", "/v2/repository/index").json()[0]["state"] == "UNAVAILABLE"
    assert "polyrec_ready 0.0" in loading.send("GET", "/metrics").text


def test_a_draining_server_still_answers_but_is_not_ready(plan: Plan, client: Any) -> None:
    engine = Engine()
    engine.load(plan)
    draining = type(client)(client.runner, create_app(engine))
    assert draining.send("GET", "/readyz").status_code == 200
    engine.enter(State.DRAINING)
    assert draining.send("GET", "/readyz").status_code == 503
    assert draining.send("GET", "/v2/models/dlrm/ready").status_code == 503
    assert draining.send("GET", "/livez").status_code == 200
    assert draining.post("/v1/predict", b'{"instances": [{}]}').status_code == 200
    engine.close()


def test_plan_and_paths_say_what_is_followed_and_what_is_open(
    client: Any, plan: Plan, bundle_dir: Any
) -> None:
    assert client.send("GET", "/v1/plan").json() == plan.model_dump(mode="json")
    (path,) = client.send("GET", "/v1/paths").json()["paths"]
    assert path["name"] == "table@cpu"
    assert (path["runtime"], path["device"], path["queued_rows"]) == ("torch", "cpu", 0)
    assert path["bundle"]["path"] == str(bundle_dir)
    assert "auc" in path["quality"]["test"]


def test_head_is_get_without_a_body(client: Any) -> None:
    assert client.send("HEAD", "/livez").status_code == 200
