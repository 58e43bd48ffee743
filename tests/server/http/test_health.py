from __future__ import annotations

from typing import Any

from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.http.app import create_app


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
    assert loading.send("GET", "/v1/paths").json() == {"paths": [], "lanes": []}
    assert loading.send("POST", "/v2/repository/index").json()[0]["state"] == "UNAVAILABLE"
    assert "polyrec_ready 0.0" in loading.send("GET", "/metrics").text


def test_a_draining_server_still_answers_but_is_not_ready(plan: Plan, client: Any) -> None:
    engine = Engine()
    engine.load(plan)
    draining = type(client)(client.runner, create_app(engine))
    assert draining.send("GET", "/readyz").status_code == 200
    engine.enter(LifecycleState.DRAINING)
    assert draining.send("GET", "/readyz").status_code == 503
    assert draining.send("GET", "/v2/models/dlrm/ready").status_code == 503
    assert draining.send("GET", "/livez").status_code == 200
    assert draining.post("/v1/predict", b'{"instances": [{}]}').status_code == 200
    engine.close()


def test_head_is_get_without_a_body(client: Any) -> None:
    assert client.send("HEAD", "/livez").status_code == 200
