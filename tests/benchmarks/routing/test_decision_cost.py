"""The benchmark of the router's decisions: it times what every query takes."""

import pytest

from benchmarks.routing.decision_cost import CASES, capacity, decision_costs
from benchmarks.routing.machines import MACHINES


def test_every_query_of_every_case_is_timed() -> None:
    found = decision_costs(queries=200)
    assert [(r["machine"], r["load"]) for r in found] == list(CASES)
    for row in found:
        assert row["calls_a_query"]["reject_early"] == pytest.approx(1.0)
        assert 0 < row["query_us_p50"] <= row["query_us_p99"]


def test_capacity_is_that_of_all_lanes_together() -> None:
    cpu, both = capacity(MACHINES["cpu"]), capacity(MACHINES["cpu+gpu"])
    assert cpu == pytest.approx(8 * 1024 / (40e-6 + 1024 * 3e-6), rel=1e-6)
    assert both > cpu + 5e6
