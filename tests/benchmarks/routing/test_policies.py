"""The routing benchmark: pairs policies on the same traces, and tells where the default stands."""

from pathlib import Path

import pytest

from benchmarks.routing.machines import MACHINES
from benchmarks.routing.policies import capacity, compare, plot, policies, summary, verdict


def test_every_policy_is_reported_as_a_share_of_the_bound(tmp_path: Path) -> None:
    found = compare(["cpu"], [("poisson", "lognormal", (0.2,))], seconds=0.36, seeds=1)
    assert [r["policy"] for r in found] == policies(MACHINES["cpu"])
    assert all(0 < r["of_bound"] <= 1.001 for r in found)
    assert len({r["queries"] for r in found}) == 1
    default = next(r for r in found if r["policy"] == "priced")
    assert default["of_bound"] > 0.99
    assert verdict(found)["lowest_up_to_80"] == default["of_bound"]
    table = list(summary(found, "cpu", "poisson", "lognormal"))
    assert len(table) == 3
    assert f"{default['of_bound']:.4f}" in table[2]
    plot(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_capacity_is_that_of_all_lanes_together() -> None:
    cpu, both = capacity(MACHINES["cpu"]), capacity(MACHINES["cpu+gpu"])
    assert cpu == pytest.approx(8 * 1024 / (40e-6 + 1024 * 3e-6), rel=1e-6)
    assert both > cpu + 5e6
