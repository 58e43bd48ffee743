from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from polyrec.measure.profile.candidates import path_memory
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.tier_settings import PAGE_BYTES, TierCuts, TierSettings
from polyrec.planner.deployment.opened import batch_reads, opened_cuts
from polyrec.planner.deployment.proposal import Proposal, propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.residency import Tables, residency
from polyrec.planner.deployment.solver.program import PlanImpossible
from polyrec.planner.deployment.spare_memory import popular_first_pays
from polyrec.planner.deployment.tier_cost import below_memory
from polyrec.planner.plan import LaneKind, Plan
from polyrec.planner.profile import Memory, PathProfile
from tests.planner.planning import machine, path, profile, skewed, traffic


def placed(
    *paths: PathProfile, memory: dict[str, int], tables: list[Tables | None], gpu: int | None
) -> Proposal:
    on = machine(cores=4, memory=10**8, gpu=gpu, disk=True)
    return propose(profile(*paths, on=on), Requirements(0.1, traffic(20), memory=memory), tables)


def test_memory_that_is_left_is_filled_to_the_last_row_with_the_hottest() -> None:
    table = path("table@cpu", tables={"t": 500_000, "t1": 500_000}, fixed=0)
    tables = skewed(500, tables=2, lookups=2.0)
    proposal = placed(table, memory={"cpu": 333_500}, tables=[tables], gpu=None)
    placement = proposal.plan.placement
    assert placement is not None
    (one,) = placement.paths
    cpu = next(m for m in placement.memories if m.place == "cpu")
    # half is cache
    assert (cpu.rows_bytes, cpu.cache_bytes) == (166_000, 167_000)
    # equally accessed tables share evenly
    assert [t.host for t in one.tables.values()] == [83, 83]
    assert all(sum(t.counts) == 500 for t in one.tables.values())
    assert one.bytes == {"host": 166_000, "disk": 834_000}
    assert one.cache_bytes == 167_000
    assert one.lookups["host"] == pytest.approx(residency(tables, (83, 83)).lookups)
    # the next hottest rows are found in the cache
    assert one.lookups["host"] + one.lookups["cache"] > residency(tables, (125, 125)).lookups
    assert sum(one.lookups.values()) == pytest.approx(1.0)


def test_latency_of_a_partly_resident_path_has_its_misses_in_it() -> None:
    table = path("table@cpu", tables={"t": 1_000_000}, fixed=0)
    proposal = placed(table, memory={"cpu": 500_000}, tables=[skewed(1000)], gpu=None)
    assert proposal.plan.placement is not None
    (planned,) = proposal.plan.paths
    assert planned.latency is not None
    tables, on = skewed(1000), machine(disk=True)
    opened = opened_cuts(tables, 500_000)
    assert proposal.plan.placement.paths[0].tables["t"].host == opened.prefix[0]
    cost = below_memory(on.device("cpu"), on, 1000.0).cost
    for rows in (64, 512):
        extra = cost.seconds(batch_reads(tables, opened, float(rows), 1.0), ahead=True)
        assert extra > 1e-4
        assert planned.latency.median(rows) == pytest.approx(table.latency.median(rows) + extra, rel=0.02)


def test_a_gpus_rest_lies_with_the_host() -> None:
    table = path("table@cuda:0", tables={"t": 1_000_000}, fixed=0)
    proposal = placed(table, memory={"cuda:0": 400_000}, tables=[skewed(1000)], gpu=10**6)
    placement = proposal.plan.placement
    assert placement is not None
    by = {m.place: m for m in placement.memories}
    assert [lane.kind for lane in proposal.plan.lanes] == ["thread"], "processes take no tiers"
    assert by["cuda:0"].rows_bytes == 400_000
    assert by["cpu"].rows_bytes == 600_000
    assert placement.paths[0].tables["t"].model_dump() == {"device": 400, "host": 600, "disk": 0, "remote": 0}


def test_everything_stays_where_it_fits() -> None:
    table = path("table@cpu", tables={"t": 1_000_000}, fixed=70, peak=5)
    placement = placed(table, memory={}, tables=[skewed(1000)], gpu=None).plan.placement
    assert placement is not None
    assert placement.paths[0].bytes == {"host": 1_000_000}
    (cpu,) = placement.memories
    assert (cpu.rows_bytes, cpu.fixed_bytes, cpu.budget_bytes) == (1_000_000, 70, 10**8)
    assert cpu.working_bytes == 3 * 5  # one core of four reads requests


def test_a_real_bundle_in_half_its_memory_keeps_the_hotter_rows(bundle: Bundle) -> None:
    rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    memory = Memory(tables={t: 32 * n for t, n in rows.items()}, fixed=100)
    measured = path("table@cpu", bundle=bundle.path, origin="measured").model_copy(update={"memory": memory})
    half = memory.total // 2
    on = machine(disk=True)
    proposal = propose(profile(measured, on=on), Requirements(0.1, traffic(20), memory={"cpu": half}))
    placement = proposal.plan.placement
    assert placement is not None
    cuts = {t: placement.paths[0].tables[t] for t in rows}
    assert {t: sum(c.counts) for t, c in cuts.items()} == rows
    cpu = next(m for m in placement.memories if m.place == "cpu")
    assert half - 40 < cpu.used_bytes <= half
    counts = {t: v.counts for t, v in bundle.encoder.vocabularies.items()}
    coldest = min(counts[t][c.host - 1] for t, c in cuts.items() if c.host)
    hottest = max(counts[t][c.host] for t, c in cuts.items() if c.disk)
    assert coldest >= hottest


def test_a_server_opens_the_cuts_that_are_planned(bundle: Bundle, tmp_path: Path) -> None:
    memory = path_memory(bundle, 0)
    measured = path("table@cpu", bundle=bundle.path, origin="measured").model_copy(update={"memory": memory})
    for share in (0.7, 0.8, 0.9):
        budget = memory.fixed + int(share * sum(memory.tables.values()))
        requirements = Requirements(0.1, traffic(20), memory={"cpu": budget})
        placement = propose(profile(measured, on=machine(disk=True)), requirements).plan.placement
        assert placement is not None
        (placed,) = placement.paths
        settings = TierSettings(
            cuts=placed.tables, cache_bytes=max(placed.cache_bytes, PAGE_BYTES), directory=tmp_path
        )
        stack = open_tiers(bundle, settings)
        try:
            assert stack.tiers.disk is not None
            opened = {t: stack.tiers.layout.cuts[t] for t in placed.tables}
            assert opened == {t: cuts.counts for t, cuts in placed.tables.items()}
        finally:
            stack.close()


def test_more_memory_never_serves_fewer_look_ups_from_it() -> None:
    table = path("table@cpu", tables={"t": 1_000_000}, fixed=0)
    tables = skewed(1000)
    found = []
    for memory in np.linspace(60_000, 1_000_000, 12, dtype=int).tolist():
        placement = placed(table, memory={"cpu": memory}, tables=[tables], gpu=None).plan.placement
        assert placement is not None
        found.append(placement.paths[0].lookups["host"])
    assert all(a <= b for a, b in pairwise(found))


def test_paths_of_one_bundle_count_its_rows_once() -> None:
    one = path("table@cpu", bundle="/b", quality=0.8, fixed=10)
    two = path("table.int8@cpu", bundle="/b", quality=0.79, row_s=1e-7, fixed=20)
    on = machine(cores=2)
    proposal = propose(profile(one, two, on=on), Requirements(0.01, traffic(200_000)), [None, None])
    assert len(proposal.plan.paths) == 2
    assert proposal.plan.placement is not None
    (cpu,) = proposal.plan.placement.memories
    assert (cpu.rows_bytes, cpu.fixed_bytes) == (1_000_000, 30)


def test_a_plans_bundle_is_the_profiles(tmp_path: Path) -> None:
    one = path("table@cpu", bundle=tmp_path / "b")
    plan = propose(profile(one), replace(Requirements(0.01, traffic(10))), [None]).plan
    assert plan.paths[0].bundle == tmp_path / "b"


def test_lanes_that_share_rows_on_disk_are_threads_of_the_server() -> None:
    table = path("table@cpu", tables={"t": 1_000_000}, fixed=0)
    on = machine(cores=8, disk=True)

    def plan(memory: int, lane: LaneKind | None = None) -> Plan:
        requirements = Requirements(0.1, traffic(20), memory={"cpu": memory}, lane=lane)
        return propose(profile(table, on=on), requirements, [skewed(1000)]).plan

    assert {lane.kind for lane in plan(10**6).lanes} == {"process"}
    (kind,) = {lane.kind for lane in plan(500_000).lanes}
    assert kind == "thread"
    with pytest.raises(PlanImpossible, match=r"500 kB are missing; lanes in processes .* --lane thread can"):
        plan(500_000, "process")


STORE = "redis://10.0.0.5:6379"


def remote_plan(
    *paths: PathProfile,
    memory: dict[str, int],
    tables: list[Tables | None],
    disk: bool = True,
    rate: float = 5.0,
) -> Plan:
    on = machine(cores=2, disk=disk, remote=STORE)
    return propose(profile(*paths, on=on), Requirements(1.0, traffic(rate), memory=memory), tables).plan


def test_rows_that_neither_memory_nor_disk_hold_are_remote() -> None:
    table = path("table@cpu", tables={"t": 500_000, "t1": 500_000}, fixed=0)
    tables = skewed(500, tables=2)
    plan = remote_plan(table, memory={"cpu": 220_000, "disk": 600_000}, tables=[tables])
    placement = plan.placement
    assert placement is not None
    assert placement.remote is not None
    assert placement.remote.url == STORE
    assert placement.popular_first
    (one,) = placement.paths
    # the file of the disk has the rows in memory, too
    assert [t.model_dump() for t in one.tables.values()] == [
        {"device": 0, "host": 55, "disk": 245, "remote": 200}
    ] * 2
    assert one.bytes == {"host": 110_000, "disk": 490_000, "remote": 400_000}
    disk = next(m for m in placement.memories if m.place == "disk")
    assert (disk.used_bytes, disk.budget_bytes) == (600_000, 600_000)
    assert one.lookups["host"] == pytest.approx(residency(tables, (55, 55)).lookups)
    assert one.lookups["remote"] == pytest.approx(1 - residency(tables, (300, 300)).lookups)
    assert sum(one.lookups.values()) == pytest.approx(1.0)


def test_latency_has_one_request_to_the_store_and_the_bytes_of_its_rows_in_it() -> None:
    table = path("table@cpu", tables={"t": 1_000_000}, fixed=0)
    plan = remote_plan(table, memory={"cpu": 300_000, "disk": 500_000}, tables=[skewed(1000)])
    assert plan.placement is not None
    (planned,) = plan.paths
    lookups = plan.placement.paths[0].lookups
    assert planned.latency is not None
    tables, on = skewed(1000), machine(disk=True, remote=STORE)
    opened = opened_cuts(tables, 300_000, local_cuts=(500,))
    cost = below_memory(on.device("cpu"), on, 1000.0).cost
    for rows in (64, 512):
        reads = batch_reads(tables, opened, float(rows), 1.0)
        assert reads.remote == pytest.approx(rows * lookups["remote"])
        disk = cost.seconds(replace(reads, remote=0.0))
        store = 3e-4 + reads.remote * 1000 / 2e8
        expected = table.latency.median(rows) + disk + store
        assert planned.latency.median(rows) == pytest.approx(expected, rel=0.02)


def test_nothing_is_remote_while_the_disk_has_room() -> None:
    table = path("table@cpu", tables={"t": 1_000_000}, fixed=0)
    plan = remote_plan(table, memory={"cpu": 300_000}, tables=[skewed(1000)])
    assert plan.placement is not None
    assert plan.placement.remote is None
    assert not plan.placement.popular_first
    assert plan.placement.paths[0].rows("remote") == 0


def test_without_a_disk_the_rest_is_remote() -> None:
    table = path("table@cpu", tables={"t": 1_000_000}, fixed=0)
    for disk, memory in ((False, {}), (True, {"disk": 0})):
        plan = remote_plan(table, memory={"cpu": 300_000, **memory}, tables=[skewed(1000)], disk=disk)
        assert plan.placement is not None
        (one,) = plan.placement.paths
        assert one.rows("disk") == 0
        assert one.rows("host") >= 250
        assert one.rows("host") + one.rows("remote") == 1000


def test_two_bundles_share_the_disk_by_one_threshold() -> None:
    # the better one is too slow for all of it; the other's rows are twice as long
    paths = [
        path("table@cpu", tables={"t": 400_000}, fixed=0, quality=0.8, row_s=2e-3),
        path("wide@cpu", tables={"t": 800_000}, fixed=0, quality=0.7),
    ]
    tables: list[Tables | None] = [skewed(400), skewed(400, row_bytes=2000.0)]
    plan = remote_plan(*paths, memory={"cpu": 200_000, "disk": 700_000}, tables=tables, rate=100)
    assert plan.placement is not None
    assert len(plan.paths) == 2
    disk = next(m for m in plan.placement.memories if m.place == "disk")
    assert 690_000 < disk.used_bytes <= 700_000
    assert all(p.bytes["remote"] > 0 for p in plan.placement.paths)
    assert plan.placement.popular_first


def test_popular_first_is_left_out_where_a_path_has_rows_on_disk_alone() -> None:
    # the first one's memory ends in the store, the second one's on the disk
    table = path("table@cpu", tables={"t": 1_000_000}, fixed=0)
    plan = remote_plan(table, memory={"cpu": 300_000, "disk": 500_000}, tables=[skewed(1000)])
    assert plan.placement is not None
    (far,) = plan.placement.paths
    near = far.model_copy(update={"path": "near@cpu", "tables": {"t": TierCuts(host=300, disk=700)}})
    assert popular_first_pays([far])
    assert not popular_first_pays([far, near])
    assert not popular_first_pays([near])
