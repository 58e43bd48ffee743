from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from polyrec.models.tiers.figures import Figures, Level
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.http.app import create_app
from polyrec.server.metrics.metrics import OUTCOMES, Metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(client: Any) -> Samples:
    answer = client.send("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
    }


def total(found: Samples, name: str, **labels: str) -> float:
    return sum(v for (n, own), v in found.items() if n == name and set(labels.items()) <= set(own))


@pytest.fixture
def fresh(plan: Plan, client: Any) -> Any:
    engine = Engine()
    engine.load(plan)
    yield type(client)(client.runner, create_app(engine))
    engine.close()


def test_every_outcome_is_timed_under_its_label(fresh: Any) -> None:
    fresh.post("/v1/predict", b'{"instances": [{}, {}]}')
    fresh.post("/v1/rank", b'{"candidates": [{}, {}, {}]}')
    fresh.post("/v1/predict", b"{")
    fresh.post("/v1/predict", b'{"instances": [{}]}', {"x-latency-budget-ms": "1e-6"})
    fresh.post("/v2/models/dlrm/infer", b'{"inputs": []}')
    found = samples(fresh)
    for endpoint, outcome in (
        ("predict", "ok"),
        ("rank", "ok"),
        ("predict", "invalid"),
        ("predict", "expired"),
        ("infer", "invalid"),
    ):
        path = "table@cpu" if outcome == "ok" else "none"
        labels = {"endpoint": endpoint, "outcome": outcome, "path": path}
        assert total(found, "polyrec_request_seconds_count", **labels) == 1
        assert total(found, "polyrec_request_seconds_sum", **labels) > 0
    assert total(found, "polyrec_rows_total", endpoint="predict") == 2
    assert total(found, "polyrec_rows_total", endpoint="rank") == 3


def test_an_answer_after_its_deadline_is_late(plan: Plan, client: Any) -> None:
    engine = Engine()
    engine.load(plan)
    app = type(client)(client.runner, create_app(engine))
    # Far more rows than fit into a millisecond, which the first query of an idle lane does not wait for.
    body = b'{"instances": [' + b"{}," * 4095 + b"{}]}"
    answer = app.post("/v1/predict", body, {"x-latency-budget-ms": "1"})
    outcome = "late" if answer.status_code == 200 else "expired"
    assert total(samples(app), "polyrec_request_seconds_count", outcome=outcome) == 1
    engine.close()


def test_batches_phases_and_lookups_are_counted(fresh: Any) -> None:
    calls = [("POST", "/v1/rank", {"content": b'{"candidates": [{"item": "?"}, {}, {}]}'})] * 4
    fresh.together(calls)
    found = samples(fresh)
    assert total(found, "polyrec_batch_rows_sum") == 12
    assert total(found, "polyrec_batch_queries_total") == 4
    batches = total(found, "polyrec_batch_rows_count")
    for phase in ("parse", "queue", "serialise"):
        assert total(found, "polyrec_phase_seconds_count", phase=phase) == 4
    for phase in ("encode", "embed", "dense"):
        assert total(found, "polyrec_phase_seconds_count", phase=phase) == batches
    # Five single-valued context features once a request, three candidate ones per candidate.
    assert total(found, "polyrec_embedding_lookups_total", tier="host") == 4 * 5 + 12 * 3
    assert total(found, "polyrec_embedding_hits_total", tier="host") == 4 * 5 + 12 * 3
    assert total(found, "polyrec_oov_lookups_total", feature="item") == 4
    assert total(found, "polyrec_queue_rows") == 0


def test_build_info_names_the_code_and_the_bundle(fresh: Any) -> None:
    found = samples(fresh)
    assert found["polyrec_ready", ()] == 1
    (labels,) = [dict(own) for (name, own) in found if name == "polyrec_build_info"]
    assert labels["runtime"] == "torch"
    assert labels["bundle"] == "trivago"


def test_names_keep_the_conventions(fresh: Any) -> None:
    fresh.post("/v1/predict", b'{"instances": [{}]}')
    text = fresh.send("GET", "/metrics").text
    for line in text.splitlines():
        if line.startswith("# TYPE polyrec"):
            _, _, name, kind = line.split()
            assert name.startswith("polyrec_")
            assert (kind == "counter") == name.endswith("_total")
            assert not name.endswith(("_ms", "_us", "_created"))


def test_requests_are_counted_by_outcome_and_those_that_did_not_occur_are_0(fresh: Any) -> None:
    fresh.post("/v1/predict", b'{"instances": [{}]}')
    fresh.post("/v1/predict", b"{")
    found = samples(fresh)
    for outcome in OUTCOMES:
        expected = 1 if outcome in ("ok", "invalid") else 0
        labels = (("endpoint", "predict"), ("outcome", outcome))
        assert found["polyrec_requests_total", labels] == expected
    assert found["polyrec_promised_share", ()] == 0.99


def test_router_state_is_exposed(fresh: Any) -> None:
    fresh.post("/v1/predict", b'{"instances": [{}]}')
    found = samples(fresh)
    assert total(found, "polyrec_lane_up", lane="cpu") == 1
    assert total(found, "polyrec_lane_breaker", lane="cpu", state="closed") == 1
    assert total(found, "polyrec_lane_breaker", lane="cpu") == 1
    assert total(found, "polyrec_lane_info", lane="cpu", device="cpu", kind="inline") == 1
    assert found["polyrec_lane_deaths_total", (("lane", "cpu"),)] == 0
    assert total(found, "polyrec_lane_busy_seconds_total", lane="cpu") > 0
    assert total(found, "polyrec_capacity_rows_per_second") > 0
    assert 0 < total(found, "polyrec_path_accuracy", path="table@cpu") <= 1
    assert total(found, "polyrec_path_predicted_seconds", path="table@cpu", rows="64") > 0
    assert total(found, "polyrec_policy_info", policy="priced") == 1
    assert found["polyrec_device_price", (("device", "cpu"),)] >= 0
    assert total(found, "polyrec_default_budget_seconds") == 60.0
    assert total(found, "process_cpu_seconds_total") > 0


def test_a_reload_keeps_counters_and_drops_old_paths(plan: Plan, client: Any) -> None:
    engine = Engine()
    engine.load(plan)
    app = type(client)(client.runner, create_app(engine))
    app.post("/v1/predict", b'{"instances": [{}]}')
    (path,) = plan.paths
    engine.load(plan.model_copy(update={"paths": (path.model_copy(update={"name": "other@cpu"}),)}))
    app.post("/v1/predict", b'{"instances": [{}]}')
    found = samples(app)
    assert total(found, "polyrec_generations_total") == 2
    assert total(found, "polyrec_rows_total", path="table@cpu") == 1
    assert total(found, "polyrec_rows_total", path="other@cpu") == 1
    assert total(found, "polyrec_path_accuracy", path="other@cpu") > 0
    assert ("polyrec_path_accuracy", (("path", "table@cpu"),)) not in found
    engine.close()


def test_figures_of_tiers_are_added_as_they_grow() -> None:
    metrics = Metrics()
    reported = [Level(100, 60, 6000, 0.5), Level(150, 80, 8000, 0.75)]
    tables = {"item": {"host": (0, 0)}}
    metrics.set_tiers([lambda: Figures({"host": reported[0]}, tables, 1, 0, 0, 0, 0)], {})
    metrics.refresh()
    del reported[0]
    metrics.refresh()
    metrics.refresh()
    text = metrics.render().decode()
    assert 'polyrec_embedding_lookups_total{tier="host"} 150\n' in text
    assert 'polyrec_embedding_hits_total{tier="host"} 80\n' in text
    assert 'polyrec_embedding_read_bytes_total{tier="host"} 8000\n' in text
    assert 'polyrec_embedding_read_seconds_total{tier="host"} 0.75\n' in text


def test_scraped_text_passes_the_linter(fresh: Any) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool on this machine (Debian: apt-get install prometheus)")
    fresh.post("/v1/predict", b'{"instances": [{}]}')
    text = fresh.send("GET", "/metrics").content
    reported = subprocess.run([program, "check", "metrics"], input=text, capture_output=True)
    assert (reported.returncode, reported.stdout, reported.stderr) == (0, b"", b"")


def test_before_any_query_the_usual_budget_is_the_default(plan: Plan) -> None:
    engine = Engine()
    engine.load(plan.model_copy(update={"default_budget_ms": 7.0}))
    try:
        assert b"\npolyrec_budget_seconds 0.007\n" in engine.metrics.render()
        assert engine.metrics.sample()["budget_s"] == 0.007
    finally:
        engine.close()
