from __future__ import annotations

from dataclasses import replace

import pytest

from polyrec.models.tiers.tier_settings import PAGE_BYTES
from polyrec.planner.deployment.opened import batch_reads, opened_cuts, resident_cuts
from polyrec.planner.deployment.tier_cost import (
    ASSUMED,
    BelowMemory,
    CutTiming,
    below_memory,
    suited,
    tiers_below,
)
from polyrec.planner.tier_times import CutTimes, TierCost
from tests.planner.planning import machine, skewed

READS = TierCost(wait_s=2e-4, read_s=1e-5, ahead_s=3e-6)


def measured(path: str, row_bytes: int) -> CutTimes:
    return CutTimes(path=path, row_bytes=row_bytes, page_bytes=512, reader="io_uring", points=(), cost=READS)


def test_a_batch_waits_once_for_reads_that_run_side_by_side() -> None:
    tables = skewed(100_000, row_bytes=256.0)
    opened = opened_cuts(tables, 2_000_000)
    timing = CutTiming(tables, opened, BelowMemory(("disk",), READS, PAGE_BYTES), ahead=False)
    for rows in (100, 200):
        reads = batch_reads(tables, opened, float(rows), 1.0).reads
        assert reads > 20
        assert timing.median(rows) == pytest.approx(2e-4 + 1e-5 * reads, rel=0.03)
    # the reads of a full lane's batches were started before
    ahead = CutTiming(tables, opened, BelowMemory(("disk",), READS, PAGE_BYTES), ahead=True)
    assert ahead.median(100) < timing.median(100) / 3
    # of a single query they were not
    assert ahead.tail(100) >= timing.median(100)


def test_the_tail_has_more_reads_than_the_median() -> None:
    tables = skewed(100_000, row_bytes=256.0)
    timing = CutTiming(tables, opened_cuts(tables, 2_000_000), BelowMemory(("disk",), READS, 4096), False)
    mean = timing.reads(40).reads
    assert timing.tail(40) == pytest.approx(2e-4 + 1e-5 * (mean + 2.326 * mean**0.5))


def test_batches_of_any_size_read_what_the_tables_say() -> None:
    tables = skewed(100_000, row_bytes=256.0, lookups=0.05)
    opened = opened_cuts(tables, 2_000_000, local_cuts=(50_000,))
    timing = CutTiming(tables, opened, BelowMemory(("disk", "remote"), READS, PAGE_BYTES), ahead=False)
    for rows in (1, 7, 19, 21, 300, 5000):
        found, wanted = timing.reads(rows), batch_reads(tables, opened, 0.05 * rows, 1.0)
        assert found.lookups == pytest.approx(wanted.lookups)
        assert found.below == pytest.approx(wanted.below)
        assert wanted.remote > 0
        assert found.remote == pytest.approx(wanted.remote)
        assert wanted.reads > 0
        assert found.reads == pytest.approx(wanted.reads, rel=0.02)
        assert found.rounds == pytest.approx(wanted.rounds, rel=0.02)


def test_the_tail_has_more_remote_rows_and_rounds_of_reads() -> None:
    tables = skewed(100_000, row_bytes=256.0)
    opened = replace(opened_cuts(tables, 2_000_000, local_cuts=(50_000,)), page_slots=4)
    cost = TierCost(wait_s=1e-3, remote_batch_s=3e-3, remote_s=1e-4)
    timing = CutTiming(tables, opened, BelowMemory(("disk", "remote"), cost, PAGE_BYTES), ahead=False)
    mean = timing.reads(100)
    reads, remote = (n + 2.326 * n**0.5 for n in (mean.reads, mean.remote))
    assert reads > 8
    assert timing.tail(100) == pytest.approx(1e-3 * reads / 4 + 3e-3 + 1e-4 * remote)
    # at most one batch in a hundred has any
    assert timing.tail(1e-3) == timing.median(1e-3)


def test_rows_that_are_all_resident_cost_what_every_batch_does() -> None:
    tables = skewed(1000)
    cost = TierCost(batch_s=1e-5, below_batch_s=1.0, wait_s=1.0, remote_batch_s=1.0)
    timing = CutTiming(tables, resident_cuts((1000,)), BelowMemory(("disk",), cost, 512), False)
    assert timing.median(100) == timing.tail(100) == pytest.approx(1e-5)


def test_rows_go_from_a_gpu_to_the_host_and_from_there_to_the_disk() -> None:
    on = machine(gpu=10**9, disk=True, remote="redis://store")
    below = [tiers_below(on.device(name), on) for name in ("cuda:0", "cpu")]
    assert below == [("host",), ("disk", "remote")]
    # over the link, row by row
    gpu = below_memory(on.device("cuda:0"), on, 800.0)
    assert gpu.cost == TierCost(below_s=800 / 8e9)


def test_without_a_disk_there_is_nothing_below_the_host() -> None:
    on = machine()
    assert not below_memory(on.device("cpu"), on, 64.0).names
    for unknown in ("disk_latency_s", "disk_bandwidth"):
        on = machine(disk=True).model_copy(update={unknown: None})
        assert not below_memory(on.device("cpu"), on, 64.0).names


def test_disk_measurements_are_ignored_without_a_disk() -> None:
    on = machine(remote="redis://store")
    found = below_memory(on.device("cpu"), on, 64.0, [measured("table@cpu", 64)])
    assert (found.names, found.page_bytes, found.measured) == (("remote",), 0, None)
    assert found.cost == ASSUMED.model_copy(update={"remote_batch_s": 3e-4, "remote_s": 64 / 2e8})


def test_a_gpu_without_a_link_or_a_host_has_nothing_below() -> None:
    on = machine(gpu=10**9)
    gpu = on.device("cuda:0")
    assert tiers_below(gpu.model_copy(update={"link": None}), on) == ()
    assert tiers_below(gpu, on.model_copy(update={"devices": (gpu,)})) == ()


def test_measured_cuts_come_before_the_description_of_a_disk() -> None:
    on = machine(disk=True, remote="redis://store")
    described = below_memory(on.device("cpu"), on, 64.0)
    assert described.page_bytes == PAGE_BYTES
    assert described.cost.wait_s == pytest.approx(ASSUMED.wait_s + 1e-4)
    assert described.cost.read_s == pytest.approx(ASSUMED.read_s + 1e-4 / 16 + PAGE_BYTES / 2e9)
    assert described.cost.below_s == ASSUMED.below_s
    found = below_memory(on.device("cpu"), on, 64.0, [measured("table@cpu", 64)])
    assert found.page_bytes == 512
    assert found.cost.read_s == READS.read_s
    assert (described.measured, found.measured) == (None, "table@cpu")
    # the store was not measured
    assert found.cost.remote_batch_s == described.cost.remote_batch_s == 3e-4


def test_cuts_of_the_same_bundle_suit_best_then_those_of_similar_rows() -> None:
    cuts = [measured("other@cpu", 64), measured("far@cpu", 1024), measured("table@cpu", 512)]
    assert [m.path for m in suited(cuts, ["table@cpu"], 64.0)] == ["table@cpu", "other@cpu", "far@cpu"]
    assert suited(cuts, [], 900.0)[0].path == "far@cpu"
