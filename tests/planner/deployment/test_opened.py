from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.tiers.layout import HOST
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.tier_settings import PAGE_BYTES, TierCuts, TierSettings
from polyrec.planner.deployment.opened import OpenedCuts, batch_reads, opened_cuts
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.deployment.residency import Tables

WIDTH = 16
ROW_BYTES = 4 * WIDTH


def counted(*sizes: int) -> tuple[Tables, list[np.ndarray]]:
    """Tables of these sizes, accessed by Zipf's law, equally often."""
    heat = [1 / np.arange(1, n + 1) for n in sizes]
    counts = [(1e7 / h.sum() * h).astype(np.int64) for h in heat]
    names = tuple(f"t{i}" for i in range(len(sizes)))
    ranked = tuple(RankedAccesses.from_counts(c) for c in counts)
    return Tables(names, ranked, (float(ROW_BYTES),) * len(sizes), float(len(sizes))), counts


@settings(max_examples=20)
@given(st.floats(0.02, 0.98))
def test_opening_divides_memory_as_planned(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    tables, counts = counted(4000, 9000, 300)
    memory = share * tables.bytes
    sizes = dict(zip(tables.names, (c.size for c in counts), strict=True))
    weight = torch.zeros(sum(sizes.values()), WIDTH)
    opened = opened_cuts(tables, memory)
    cuts = {t: TierCuts(host=n, disk=sizes[t] - n) for t, n in zip(tables.names, opened.prefix, strict=True)}
    row_format = RowFormat(WIDTH, "fp32")
    settings = TierSettings(
        cuts=cuts,
        cache_bytes=max(opened.cache_bytes, PAGE_BYTES),
        directory=tmp_path_factory.mktemp("tiers"),
    )
    stack = open_stack(rows_of_weight(weight, row_format, sizes), settings, counts=counts)
    try:
        layout, disk = stack.tiers.layout, stack.tiers.disk
        assert disk is not None
        prefix = [int(layout.counts[(layout.tier == HOST) & (layout.table == i)].sum()) for i in range(3)]
        assert prefix == list(opened.prefix)
        # pages of this disk may be smaller than those that were planned with
        assert disk.row_cache.slots == pytest.approx(opened.slots, abs=70)
        # huge pages round up
        assert stack.tiers.slab.nbytes <= memory + 2 * 2**21
    finally:
        stack.close()


def test_memory_for_everything_has_no_cache() -> None:
    tables, _ = counted(100, 200)
    opened = opened_cuts(tables, tables.bytes)
    assert opened.prefix == (100, 200)
    assert opened.cache_bytes == 0
    assert batch_reads(tables, opened, 500.0, 1.0).reads == 0.0


def test_half_of_the_memory_of_tables_on_disk_is_cache() -> None:
    tables, _ = counted(20_000)
    opened = opened_cuts(tables, 640_000)
    assert opened.prefix == (5000,)
    assert opened.cache_bytes == 320_000


def test_remote_rows_take_no_memory() -> None:
    tables, _ = counted(20_000)
    opened = opened_cuts(tables, 640_000, local_cuts=(12_000,))
    assert opened.prefix == (5000,)
    reads = batch_reads(tables, opened, 1000.0, 1.0)
    accesses = tables.accesses_by_rank[0]
    assert reads.remote == pytest.approx(1000 * (1 - accesses.before(12_000) / accesses.total))
    assert reads.below == pytest.approx(
        1000 * (accesses.before(12_000) - accesses.before(5000)) / accesses.total
    )


def test_expected_reads_are_those_of_drawn_look_ups() -> None:
    tables, (counts,) = counted(20_000)
    opened = OpenedCuts((2000,), None, 10**6, 1000, 100, page_bytes=ROW_BYTES * 4)
    random = np.random.default_rng(0)
    drawn = random.choice(counts.size, (200, 3000), p=counts / counts.sum())
    pages = [np.unique(batch[batch >= 2500] // 4).size for batch in drawn]
    expected = batch_reads(tables, opened, 3000.0, cached=0.5)
    assert expected.reads == pytest.approx(np.mean(pages), rel=0.02)
    assert expected.below == pytest.approx(np.mean((drawn >= 2000).sum(axis=1)), rel=0.02)
    # three times as many pages as slots: so many rounds
    assert expected.rounds == pytest.approx(expected.reads / 100)
