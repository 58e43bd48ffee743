"""A server measures live quality beside it, and its router's values follow within bounds."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import orjson
import pytest

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.live_quality.live import STALE_S, LiveQuality, LiveQualityError
from polyrec.server.live_quality.report import (
    CanaryReport,
    Ends,
    PathReport,
    Report,
    read_report,
    report_file,
    write_report,
)
from polyrec.server.live_quality.settings import LiveQualitySettings
from polyrec.server.prediction_log.settings import PredictionLogSettings
from tests.server.conftest import Request
from tests.server.live_quality.conftest import NARROW, WIDE, plan_of_widths
from tests.server.placing import ALLOWED, TOKEN, placed_plan
from tests.server.prediction_log.conftest import LoggingServer, serve_logging
from tests.server.prediction_log.test_log import feedback, rank, wait
from tests.server.rollout.test_live_labels import plan_file, version

Opened = Callable[[Plan], Engine]
__all__ = ["serve_logging"]
FOLLOW = LiveQualitySettings(mode="follow")


def values_of(engine: Engine) -> dict[str, float]:
    return {path.name: path.value for path in engine.serving.dispatcher.router.state.paths}


def report_of(confirmed: Ends | None, at_s: float) -> Report:
    path = PathReport(
        version="v",
        information=(0.1, 0.0, 0.2),
        calibration=None,
        auc=None,
        difference=None,
        confirmed=confirmed,
    )
    return Report(at_s=at_s, requests=9, paths={NARROW: path}, reference=WIDE)


def test_values_follow_a_report_within_the_bound_and_return_when_it_is_old(
    opened: Opened, nested: Bundle, tmp_path: Path
) -> None:
    plan = plan_of_widths(nested)
    paths = [p.model_copy(update={"quality": q}) for p, q in zip(plan.paths, (0.10, 0.20), strict=True)]
    engine = opened(plan.model_copy(update={"paths": tuple(paths)}))
    live = LiveQuality(FOLLOW, PredictionLogSettings(folder=tmp_path), engine.metrics, engine.serving)
    offline = values_of(engine)
    assert offline == {NARROW: 0.10, WIDE: 0.20}
    # the judge of the server waits for the lock, so that the reports are the test's
    judged = live.judged_of(engine.serving)
    file = report_file(tmp_path, judged.digest)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        live.adopt(engine.serving)
        assert live.pipe is not None
        try:
            for confirmed, expected in (
                (None, 0.10),
                ((-0.1, -0.15, -0.05), 0.10),
                ((-0.08, -0.09, -0.07), 0.11),
                ((0.5, 0.4, 0.6), 0.14),
                ((-0.9, -0.95, -0.85), 0.06),
            ):
                write_report(file, report_of(confirmed, time.time()))
                asyncio.run(live.poll())
                assert values_of(engine) == pytest.approx({NARROW: expected, WIDE: 0.20})
            document = live.document()
            assert document is not None
            assert document["value_changes"][NARROW] == pytest.approx(-0.04)
            write_report(file, report_of((0.5, 0.4, 0.6), time.time() - STALE_S - 1))
            asyncio.run(live.poll())
            assert values_of(engine) == offline
            file.write_text("{")
            asyncio.run(live.poll())
            assert values_of(engine) == offline
        finally:
            live.close()


@pytest.mark.parametrize(
    ("log", "metric", "message"),
    [
        ({"hash": ("user_id",)}, "information", "--prediction-log-hash"),
        ({"leave_out": ("city",)}, "information", "--prediction-log-leave-out"),
        ({}, "auc", "measure"),
    ],
)
def test_live_quality_rejects_logs_and_plans_it_cannot_score(
    opened: Opened, nested: Bundle, tmp_path: Path, log: dict[str, tuple[str, ...]], metric: str, message: str
) -> None:
    engine = opened(plan_of_widths(nested).model_copy(update={"metric": metric}))
    settings = PredictionLogSettings.model_validate({"folder": tmp_path} | log)
    with pytest.raises(LiveQualityError, match=message):
        LiveQuality(FOLLOW, settings, engine.metrics, engine.serving)


def test_only_rows_in_tiers_keep_a_plan_from_being_judged(
    opened: Opened, bundle: Bundle, tmp_path: Path
) -> None:
    settings = PredictionLogSettings(folder=tmp_path)
    rows = {table: v.rows for table, v in bundle.encoder.vocabularies.items()}
    in_memory = opened(placed_plan(bundle, tmp_path, lambda n: {"host": n}))
    assert set(in_memory.serving.plan.placement.paths[0].tables) == set(rows)
    live = LiveQuality(FOLLOW, settings, in_memory.metrics, in_memory.serving)
    assert live.judged_of(in_memory.serving).paths
    in_tiers = opened(placed_plan(bundle, tmp_path))
    with pytest.raises(LiveQualityError, match="rows in tiers are not scored again"):
        LiveQuality(FOLLOW, settings, in_tiers.metrics, in_tiers.serving)


JUDGED = {
    # a label counts if it comes within the window of its answer, on a busy machine too
    "prediction_log_window_s": 3,
    "live_quality": "measure",
    # on a busy machine there is no idle time
    "live_quality_priority": "normal",
    "live_quality_every_s": 0.2,
}


def rank_and_label(http: httpx.Client, requests: list[Request]) -> None:
    for i, request in enumerate(requests):
        rank(http, request, f"r{i}")
        assert feedback(http, {"request_id": f"r{i}", "positives": [0]}).status_code == 200


def test_a_server_reports_the_quality_of_every_path_on_labeled_requests(
    serve_logging: LoggingServer, nested: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text(plan_of_widths(nested).model_dump_json(exclude_none=True))
    http = serve_logging(
        plan=tmp_path / "plan.json",
        **JUDGED,
    )
    rank_and_label(http, requests[:10])

    log_folder = tmp_path / "log"
    # step by step, as each has a deadline: the judge's imports, its first report, its report on all requests
    wait(lambda: any(log_folder.glob(".live-quality-*.lock")))
    wait(lambda: any(log_folder.glob(".live-quality-*.json")))

    def judged() -> bool:
        (report,) = log_folder.glob(".live-quality-*.json")
        return orjson.loads(report.read_bytes())["requests"] == 10

    wait(judged)
    wait(lambda: (http.get("/v1/status").json()["live_quality"] or {}).get("requests") == 10)
    status = http.get("/v1/status").json()["live_quality"]
    assert status["positives"] == 10
    assert status["clients"] == {"shop": 10}
    assert {NARROW, WIDE} == set(status["paths"])
    for path in (NARROW, WIDE, "served"):
        samples = MetricSamples(http.get("/metrics").text)
        low, value, high = (
            samples.total("polyrec_live_quality", path=path, metric="information", end=end)
            for end in ("low", "value", "high")
        )
        assert low <= value <= high


@pytest.mark.long
def test_a_server_judges_a_canary_by_the_labels_of_requests_from_before_its_rollout(
    serve_logging: LoggingServer, plan: Plan, bundle: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    canary = plan_file(plan, version(bundle, tmp_path / "canary", shuffled=True))
    http = serve_logging(
        admin_token=TOKEN,
        **JUDGED,
    )
    rank_and_label(http, requests[:10])
    arguments = {"plan": str(canary), "share": 0.01, "shadow": 0}
    began = http.post("/v1/admin/rollout/start", json=arguments, headers=ALLOWED)
    assert began.status_code == 200, began.text
    canary_version = began.json()["rollout"]["canary_version"]

    def canaries() -> list[CanaryReport]:
        reports = map(read_report, (tmp_path / "log").glob(".live-quality-*.json"))
        return [report.trial for report in reports if report is not None and report.trial is not None]

    wait(lambda: bool(canaries()))
    wait(lambda: canaries()[0].requests == 10)
    (found,) = canaries()
    assert (found.version, found.positives) == (canary_version, 10)
    assert found.difference is not None


@pytest.mark.long
def test_each_of_several_models_is_judged_by_its_own_log(
    serve_logging: LoggingServer, bundle_dir: Path, nested: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    (tmp_path / "widths.json").write_text(plan_of_widths(nested).model_dump_json(exclude_none=True))
    http = serve_logging(
        plans=f"hotels={bundle_dir},widths={tmp_path / 'widths.json'}",
        **JUDGED,
    )
    answered = {"hotels": 2, "widths": 3}
    for name, many in answered.items():
        for request in requests[:many]:
            body = {"context": request.context, "candidates": request.candidates}
            assert http.post(f"/v1/models/{name}/rank", content=orjson.dumps(body)).status_code == 200

    for name in answered:
        wait(lambda of=name: any((tmp_path / "log" / of).glob(".live-quality-*.lock")))
    for name in answered:
        wait(lambda of=name: any((tmp_path / "log" / of).glob(".live-quality-*.json")))

    def measured() -> dict[str, float]:
        samples = MetricSamples(http.get("/metrics").text)
        return {name: samples.total("polyrec_live_window", of="requests", model=name) for name in answered}

    wait(lambda: measured() == answered)
    for name, paths in (("hotels", 1), ("widths", 2)):
        live = http.get(f"/v1/models/{name}/status").json()["live_quality"]
        assert (live["requests"], len(live["paths"])) == (answered[name], paths)
