from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import BundleError
from polyrec.planner.deployment.proposal import propose, tables_of
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.solver.problem import build_problem
from polyrec.planner.deployment.solver.program import PlanImpossible
from polyrec.planner.plan import Limits, Plan, load_plan, save_plan
from polyrec.planner.profile import Front, Hop, PathProfile, ProfileError, on_machine
from polyrec.planner.tier_times import CutTimes, TierCost
from polyrec.planner.traffic import Arrivals, Sizes, Traffic
from tests.planner.planning import machine, path, profile, traffic

GOOD = path("hybrid@cpu", quality=0.81, row_s=1e-5)
FAST = path("table@cpu", quality=0.8)


def planned(*paths: PathProfile, slo_s: float = 0.01, rate: float = 100.0) -> Plan:
    return propose(profile(*paths), Requirements(slo_s, traffic(rate)), [None] * len(paths)).plan


def test_a_plan_is_saved_and_loaded(tmp_path: Path) -> None:
    plan = planned(GOOD, FAST, rate=5000)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


def test_an_slo_that_no_path_meets_says_by_how_much() -> None:
    with pytest.raises(PlanImpossible) as error:
        planned(GOOD, FAST, slo_s=0.0002)
    # 120 us and half of that again at the tail, doubled by the wait for the one lane
    assert str(error.value) == (
        "no path answers 20 rows (the smallest queries) within 0.2 ms: the fastest, table@cpu, needs "
        "0.36 ms (execution 0.18 ms, waiting for a lane 0.18 ms, reading and writing 0 ms), 0.16 ms more"
    )


def test_an_slo_of_exactly_the_needed_time_is_met() -> None:
    assert planned(GOOD, FAST, slo_s=0.00036).paths[0].name == "table@cpu"


def test_memory_below_the_smallest_path_says_by_how_much() -> None:
    with pytest.raises(PlanImpossible) as error:
        propose(profile(FAST), Requirements(0.01, traffic(10), memory={"cpu": 400_000}), [None])
    assert str(error.value) == (
        "no path that keeps 10 ms fits the memory: the smallest, table@cpu, needs 1 MB of cpu, which has "
        "400 kB; 601 kB are missing"
    )


def test_a_rate_beyond_the_machine_gives_a_plan_that_serves_its_share() -> None:
    plan = planned(GOOD, FAST, rate=1e6)
    e = plan.expected
    assert e is not None
    assert 0 < e.served < 0.2
    assert e.rows_per_s == pytest.approx(e.served * 2e7)
    assert [b.kind for b in e.bound] == ["time"]
    assert e.bound[0].what == "cpu"
    assert e.devices[0].load == pytest.approx(1.0)


def test_an_absurd_rate_is_served_to_the_machines_capacity() -> None:
    most = [planned(GOOD, FAST, rate=rate).expected for rate in (1e6, 1e15)]
    assert most[0] is not None
    assert most[1] is not None
    assert most[1].rows_per_s == pytest.approx(most[0].rows_per_s, rel=1e-3)
    assert most[1].served == pytest.approx(most[1].rows_per_s / 2e16)


def test_queries_too_large_for_the_slo_are_counted_as_unserved() -> None:
    mixed = Traffic(rate=10, sizes=Sizes(kind="measured", values=(10, 4000), shares=(0.9, 0.1)))
    e = propose(profile(FAST), Requirements(0.005, mixed), [None]).plan.expected
    assert e is not None
    assert e.unserved == pytest.approx(400 / 409)
    assert e.bound[0].kind == "slo"


def test_at_little_load_nothing_binds() -> None:
    e = planned(GOOD, FAST).expected
    assert e is not None
    assert (e.served, e.quality, e.bound, e.more) == (1.0, pytest.approx(0.81), (), ())


def test_an_upgrade_gains_what_planning_with_it_gives() -> None:
    paths, rate = (GOOD, FAST), 1e6
    e = planned(*paths, rate=rate).expected
    more = propose(
        profile(*paths, on=machine(cores=3)), Requirements(0.01, traffic(rate)), [None, None]
    ).plan.expected
    assert e is not None
    assert more is not None
    assert e.more[0].what == "1 core of cpu"
    assert e.more[0].information_per_s == pytest.approx(more.information_per_s - e.information_per_s)


def test_binding_memory_comes_with_the_gain_of_a_gigabyte() -> None:
    small = path("dhe@cpu", quality=0.7, tables={"t": 1000})
    requirements = Requirements(0.01, traffic(10), memory={"cpu": 500_000})
    e = propose(profile(GOOD, small), requirements, [None, None]).plan.expected
    assert e is not None
    assert [(b.kind, b.what) for b in e.bound] == [("memory", "cpu")]
    assert e.bound[0].gain == pytest.approx(200 * 0.11)
    gigabyte = next(m for m in e.more if m.what == "1 GB of cpu")
    assert gigabyte.information_per_s == pytest.approx(200 * 0.11)


@pytest.mark.parametrize(
    ("cores", "gpu", "lanes"),
    [
        (1, None, [("cpu", "inline")]),
        (2, None, [("cpu", "inline")]),
        (4, None, [("cpu.0", "process"), ("cpu.1", "process"), ("cpu.2", "process")]),
        # one core reads requests, one feeds the GPU
        (4, 10**9, [("cpu.0", "process"), ("cpu.1", "process"), ("cuda:0", "process")]),
    ],
)
def test_lanes_take_the_cores_that_the_front_and_the_accelerators_leave(
    cores: int, gpu: int | None, lanes: list[tuple[str, str]]
) -> None:
    paths = [FAST] if gpu is None else [FAST, path("table@cuda:0", row_s=1e-8)]
    on = machine(cores=cores, gpu=gpu)
    plan = propose(profile(*paths, on=on), Requirements(0.01, traffic(1e7)), [None] * len(paths)).plan
    assert [(lane.name, lane.kind) for lane in plan.lanes] == lanes


def test_an_accelerator_that_is_not_worth_feeding_leaves_its_core_to_the_cpu() -> None:
    slow = path("table@cuda:0", fixed_s=4e-3, row_s=1e-5)
    on = machine(cores=4, gpu=10**9)
    plan = propose(profile(FAST, slow, on=on), Requirements(0.01, traffic(1e7)), [None, None]).plan
    assert [lane.name for lane in plan.lanes] == ["cpu.0", "cpu.1", "cpu.2"]


def test_an_inline_lane_shares_its_core_with_the_front() -> None:
    front = Front(query_s=1e-4, row_s=0.0)
    alone, shared = (
        propose(profile(FAST, front=f), Requirements(0.01, traffic(1e6)), [None]).plan.expected
        for f in (None, front)
    )
    assert alone is not None
    assert shared is not None
    assert shared.rows_per_s < 0.5 * alone.rows_per_s
    assert (
        propose(profile(FAST, front=front), Requirements(0.01, traffic(10)), [None]).plan.routing.query_s
        == 1e-4
    )


def test_two_cores_read_on_the_one_and_execute_on_the_other_where_that_serves_more() -> None:
    front = Front(query_s=5e-5, row_s=0.0)
    for rate, kind in ((10, "inline"), (30_000, "process")):
        plan = propose(profile(FAST, front=front), Requirements(0.01, traffic(rate)), [None]).plan
        assert [lane.kind for lane in plan.lanes] == [kind]
    one = propose(profile(FAST, front=front), Requirements(0.01, traffic(30_000), cores=1), [None]).plan
    assert [lane.kind for lane in one.lanes] == ["inline"]


def test_the_hop_to_a_lane_takes_what_the_profile_measured() -> None:
    requirements = Requirements(0.01, traffic(1e6), lane="process")
    quick, slow = (
        build_problem(profile(FAST).model_copy(update={"hops": {"process": hop}}), requirements, [None])
        for hop in (Hop(median_s=1e-5, tail_s=2e-5), Hop(median_s=1e-3, tail_s=4e-3))
    )
    assert [problem.lanes["cpu"].hop.median_s for problem in (quick, slow)] == [1e-5, 1e-3]
    # a dearer hop: fewer rows a second of the same lane
    assert min(o.cost_s[0] for o in slow.options) > 1.5 * min(o.cost_s[0] for o in quick.options)
    # what was not measured is assumed, and the loop's own lane has no way
    assert build_problem(profile(FAST), requirements, [None]).lanes["cpu"].hop.median_s > 0
    assert build_problem(profile(FAST), Requirements(0.01, traffic(10)), [None]).lanes["cpu"].hop.tail_s == 0


def test_bursts_count_for_as_long_as_they_last() -> None:
    steady, bursty = traffic(10_000), traffic(10_000, arrivals=Arrivals(kind="bursty", factor=10))
    found = [
        propose(profile(GOOD, FAST), Requirements(0.01, t), [None, None]).plan.expected
        for t in (steady, bursty)
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].asked_rows_per_s == pytest.approx(found[1].asked_rows_per_s)
    assert found[1].information_per_s < found[0].information_per_s


def test_limits_hold_what_the_paths_can_do() -> None:
    plan = planned(GOOD, FAST, rate=5000)
    assert plan.limits.max_queued_rows >= plan.limits.max_request_rows == Limits().max_request_rows
    assert plan.expected is not None
    assert plan.limits.max_batch_rows == max(p.batch_rows for p in plan.expected.paths)


def test_prices_give_the_cost_of_a_million_predictions() -> None:
    on = machine(price=0.36)
    e = propose(profile(FAST, on=on), Requirements(0.01, traffic(100)), [None]).plan.expected
    assert e is not None
    # 0.0001 a second for 2,000 predictions a second
    assert e.cost_per_million == pytest.approx(0.0001 / 2000 * 1e6)


def test_a_missing_bundle_of_a_measured_path_raises(tmp_path: Path) -> None:
    measured = path("table@cpu", bundle=tmp_path / "gone", origin="measured")
    with pytest.raises(BundleError, match=r"path 'table@cpu' of the profile: no bundle at .*gone"):
        propose(profile(measured), Requirements(0.01, traffic(10)))
    assert tables_of([FAST]) == (None,)


def test_tables_are_read_once_a_bundle(bundle: Bundle) -> None:
    rows = {t: 32 * v.rows for t, v in bundle.encoder.vocabularies.items()}
    paths = [path(name, bundle=bundle.path, tables=rows, origin="measured") for name in ("a@cpu", "b@cpu")]
    one, two = tables_of(paths)
    assert one is not None
    assert one is two


def test_a_description_of_another_machine_is_rejected() -> None:
    other = machine().model_copy(update={"name": "other"})
    with pytest.raises(ProfileError, match=r"the profile is of machine 'made', 'f\.yaml' describes 'other'"):
        on_machine(profile(FAST), other, "f.yaml")


def test_a_description_without_a_profiled_device_is_rejected() -> None:
    made = profile(path("table@cuda:0"), on=machine(gpu=10**9))
    with pytest.raises(ProfileError, match=r"profiled on device 'cuda:0', which 'f\.yaml' does not describe"):
        on_machine(made, machine(), "f.yaml")


def test_times_of_cuts_are_those_of_the_profiles_disk() -> None:
    cuts = CutTimes(
        path="table@cpu", row_bytes=64, page_bytes=512, reader="io_uring", points=(), cost=TierCost()
    )
    made = profile(FAST, on=machine(disk=True)).model_copy(update={"cut_times": (cuts,)})
    larger = machine(disk=True, memory=10**10)
    assert on_machine(made, larger, "f.yaml").cut_times == (cuts,)
    slower = larger.model_copy(update={"disk_latency_s": 1e-2})
    assert on_machine(made, slower, "f.yaml").cut_times == ()
