from __future__ import annotations

from pathlib import Path

from polyrec.planner.arrivals import Arrivals
from polyrec.planner.deployment.explain import describe_traffic, page
from polyrec.planner.deployment.proposal import propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.plan import single_path_plan
from polyrec.planner.tier_times import CutTimes, TierCost
from polyrec.planner.traffic import Sizes, Traffic
from tests.planner.planning import machine, path, profile, skewed, traffic

GOOD = path("hybrid@cpu", quality=0.81, row_s=1e-5)
FAST = path("table@cpu", quality=0.8)


def text(rate: float, **memory: int) -> str:
    requirements = Requirements(0.01, traffic(rate), memory=memory)
    return "\n".join(page(propose(profile(GOOD, FAST), requirements, [None, None]).plan))


def test_a_page_says_what_is_served_by_which_paths() -> None:
    shown = text(100)
    assert "Plan for machine 'made': 100 queries/s of 20 rows, poisson, within 10 ms" in shown
    assert "Serves 100% of it: 2,000 of 2,000 rows/s, information 1,620/s (0.81000 a row)" in shown
    (line,) = (row for row in shown.splitlines() if row.startswith("hybrid@cpu"))
    assert line.split() == [
        "hybrid@cpu", "100%", "0.81000", "323", "rows", "323", "rows", "1", "MB", "host",
    ]  # fmt: skip
    assert "Bound by nothing" in shown


def test_traffic_is_described_with_the_kinds_of_its_sizes_and_arrivals() -> None:
    bursts = Arrivals(kind="bursty", factor=3.0, period_s=0.1, burst_s=0.02)
    sizes = Sizes(kind="measured", values=(10, 30))
    described = describe_traffic(Traffic(rate=4000, sizes=sizes, arrivals=bursts))
    assert described == "4,000 queries/s of 20 rows on average (measured), bursty by 3"


def test_a_reserve_is_called_so() -> None:
    (line,) = (row for row in text(3000).splitlines() if row.startswith("table@cpu"))
    assert "in reserve" in line


def test_a_full_machine_says_what_limits_it_and_what_upgrades_gain() -> None:
    shown = text(1e6)
    assert "of it:" in shown
    assert "Serves 100%" not in shown
    (device,) = (row for row in shown.splitlines() if row.startswith("cpu (inline)"))
    assert "full" in device
    assert "information/s" in device
    assert "Bound by time of cpu (+" in shown
    assert "Bound by nothing" not in shown
    assert "1 core of cpu more would add" in shown
    assert "1 GB of cpu more would add nothing" in shown


def test_memory_that_binds_is_named() -> None:
    small = path("dhe@cpu", quality=0.7, tables={"t": 1000})
    requirements = Requirements(0.01, traffic(10), memory={"cpu": 500_000})
    shown = "\n".join(page(propose(profile(GOOD, small), requirements, [None, None]).plan))
    assert "Bound by memory of cpu (+22 information/s without it)" in shown
    assert "1 GB of cpu more would add 22 information/s" in shown


def test_tiers_are_shown_with_their_share_of_the_look_ups() -> None:
    on = machine(disk=True)
    requirements = Requirements(0.1, traffic(20), memory={"cpu": 500_000})
    plan = propose(profile(path("table@cpu"), on=on), requirements, [skewed(1000)]).plan
    shown = "\n".join(page(plan))
    assert "kB host (" in shown
    assert "kB disk (" in shown
    assert "(in brackets: share of the lookups that find their row there)" in shown
    assert "popular_first" not in shown


def test_remote_rows_are_shown_with_what_memory_and_disk_hold() -> None:
    on = machine(disk=True, remote="redis://store:6379")
    requirements = Requirements(1.0, traffic(5), memory={"cpu": 300_000, "disk": 500_000})
    shown = page(propose(profile(path("table@cpu", fixed=0), on=on), requirements, [skewed(1000)]).plan)
    assert any(
        "150 kB host (" in line
        and "150 kB cache (" in line
        and "350 kB disk (" in line
        and "500 kB remote (" in line
        for line in shown
    )
    assert any("table@cpu: a batch of 20 rows takes " in line and " remote rows" in line for line in shown)
    assert any("go first" in line and "(popular_first)" in line for line in shown)
    assert any("polyrec profile --tiers measures it" in line for line in shown)
    assert any(line.split()[:6] == ["disk", "500", "kB", "500", "kB", "500"] for line in shown)


def test_the_cost_of_rows_on_disk_is_shown_with_its_origin() -> None:
    cuts = CutTimes(
        path="table@cpu",
        row_bytes=1000,
        page_bytes=1024,
        reader="io_uring",
        points=(),
        cost=TierCost(wait_s=3e-3),
    )
    made = profile(path("table@cpu", fixed=0), on=machine(disk=True)).model_copy(
        update={"cut_times": (cuts,)}
    )
    requirements = Requirements(1.0, traffic(5, 64), memory={"cpu": 300_000})
    shown = page(propose(made, requirements, [skewed(1000)]).plan)
    (line,) = (line for line in shown if "a batch of 64 rows" in line)
    # nearly all batches read, and wait once
    assert "takes 3.1" in line
    assert "with all rows in memory 0.164 ms" in line
    assert "  by the cost of the disk measured with table@cpu" in shown


def test_queries_that_no_path_answers_are_shown() -> None:
    mixed = Traffic(rate=10, sizes=Sizes(kind="measured", values=(10, 4000), shares=(0.9, 0.1)))
    shown = "\n".join(page(propose(profile(FAST), Requirements(0.005, mixed), [None]).plan))
    assert "97.8% of the rows come in queries that no path answers within the SLO" in shown


def test_a_plan_made_by_hand_has_a_page_too() -> None:
    shown = page(single_path_plan(Path("b"), "table", "onnx"))
    assert shown[0] == "Paths"
    assert "table@cpu" in shown[1]
    assert shown[-1].startswith("Batches up to 1,024 rows")


def test_a_plan_that_serves_nearly_nothing_is_not_bound_by_nothing() -> None:
    """The solver's tolerance hides what a freed device would gain at so high a rate."""
    shown = text(1e12)
    assert "Serves 0% of it" in shown
    assert "Bound by nothing" not in shown
