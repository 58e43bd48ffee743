from __future__ import annotations

from dataclasses import asdict

from polyrec.cli.measure.load_text import lines
from polyrec.loadtest.results.figures import figures
from polyrec.loadtest.results.outcome import report
from tests.loadtest.runs import outcome_of


def test_the_figures_are_readable_and_name_outcomes_as_the_status_page_does() -> None:
    status = [200] * 90 + [429] * 8 + [504] * 2
    outcome = outcome_of([i / 100 for i in range(100)], 0.0042, status=status)
    whole = asdict(report(outcome)) | asdict(figures(outcome, {"good@cpu": 0.25, "fast@cpu": 0.2}))
    shown = dict(line.split(maxsplit=1) for line in lines(whole | {"server_waited": 0.0412}))
    assert shown["requests"].startswith("100, 101.0 a second")
    assert shown["in"] == "budget    90.00%, rejected (429) 8.00%, expired (504) 2.00%"
    assert shown["latency,"] == "ms  p50 4.2, p90 4.2, p99 4.2, p99.9 4.2, max 4.2"
    assert shown["rows"].endswith("a second in budget, of quality 0.2500 on average")
    assert shown["paths"] == "good@cpu 100.0%, degraded 0.0%"
    assert shown["failed"] == "2 by HTTP 504"
    assert shown["driver"] == "1 connections; p99 lag 0 ms"
    assert shown["server"] == "waited for a processor 4.1% of the time"


def test_without_answers_there_are_no_latencies_and_reasons_are_shown() -> None:
    outcome = outcome_of([0.0, 0.5], status=404)
    outcome.reasons[404] = "no model 'x'"
    whole = asdict(report(outcome)) | asdict(figures(outcome, {}))
    shown = lines(whole | {"unreliable": "why"})
    assert shown[0] == "unreliable   why"
    assert "failed       2 by HTTP 404, such as: no model 'x'" in shown
    assert not any(line.startswith(("latency", "paths")) for line in shown)
