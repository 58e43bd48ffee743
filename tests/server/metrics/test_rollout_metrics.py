"""Metrics of a rollout: requests by outcome."""

from __future__ import annotations

from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.server.metrics.instruments import Registry
from polyrec.server.metrics.rollout_metrics import RolloutMetrics


def test_requests_that_waits_of_lanes_explain_are_counted_as_excused() -> None:
    registry = Registry()
    metrics = RolloutMetrics(registry, (0.01, 0.1))
    records = ArmRecords(took_s=[0.02, 0.5, 0.03], late=1, failed=2, waited_s=[0.0, 0.25, 0.0], excused=3)
    metrics.add("canary", records)
    metrics.add("canary", ArmRecords(excused=1))
    text = registry.text()
    for outcome, number in (("ok", 2), ("late", 1), ("failed", 2), ("excused", 4)):
        assert f'polyrec_rollout_requests_total{{arm="canary",outcome="{outcome}"}} {number}' in text
    assert 'polyrec_rollout_waited_seconds_total{arm="canary"} 0.25' in text
