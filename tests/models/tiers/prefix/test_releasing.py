"""The prefix is released to the cache while batches are gathered and rows are updated."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.drift import Drift
from polyrec.models.tiers.updates.update import TableUpdate, apply_update
from polyrec.models.tiers.view import View
from tests.models.random_batches import random_batch
from tests.models.tiers.newest_view import newest_view
from tests.models.tiers.worlds import check_resolved, encoder_of, row_of, world

SIZES = {"a": 6000, "b": 300}


@pytest.fixture
def stack(tmp_path: Path) -> TierStack:
    """Half of each table in host memory, the rest on disk, with a cache for them."""
    return world(encoder_of(SIZES), tmp_path, (0.0, 0.5, 0.5), cache_bytes=600_000)


def ranks(view: View, table: str, ids: I64) -> torch.Tensor:
    assert view.encoder is not None
    base = 0 if table == "a" else SIZES["a"]
    return torch.from_numpy(base + view.encoder.vocabularies[table].rank_of_id[ids])


def look_up(stack: TierStack, table: str, ids: I64, version: int = 0) -> None:
    rows = TieredRows(stack)
    with newest_view(rows) as view:
        got = rows.gather(ranks(view, table, ids)).numpy()
    np.testing.assert_array_equal(got, row_of(list(SIZES).index(table), ids, version))


def test_released_rows_are_read_from_the_cache_then_from_the_file(stack: TierStack) -> None:
    prefix, releaser = stack.tiers.prefix, stack.releaser
    assert prefix is not None
    assert releaser is not None
    assert prefix.releasable == 3150
    releaser.release(1000)
    assert (prefix.released, prefix.releasable) == (1000, 2150)
    for number, (table, size) in enumerate(SIZES.items()):
        ids = np.arange(size)
        apply_update(stack, {table: TableUpdate(ids, row_of(number, ids, 1))})
        assert stack.settle(10)
        look_up(stack, table, ids, 1)
    while prefix.releasable:
        releaser.release(prefix.releasable)
        look_up(stack, "b", np.arange(300), 1)
    for _ in range(3):
        # far more rows than slots: each is read from the file again
        look_up(stack, "a", np.arange(6000), 1)
    levels = stack.figures().levels
    assert levels["cache"].lookups > 20_000
    assert levels["host"].lookups == levels["host"].hits + levels["cache"].lookups
    stack.close()


def test_updates_of_host_rows_reach_the_file_before_these_are_released(stack: TierStack) -> None:
    tiers, releaser = stack.tiers, stack.releaser
    assert tiers.disk is not None
    assert tiers.prefix is not None
    assert releaser is not None
    random = np.random.default_rng(3)
    latest = np.zeros(SIZES["a"], np.int64)
    for version in range(1, 6):
        ids = random.permutation(SIZES["a"])[:2000]
        latest[ids] = version
        apply_update(stack, {"a": TableUpdate(ids, row_of(0, ids, version))})
        assert stack.settle(10)
        left = tiers.prefix.releasable
        # a release that finds outdated rows has them written first
        while tiers.prefix.releasable and tiers.prefix.releasable == left:
            releaser.release(min(500, left))
            stack.gather(stack.views.newest, np.arange(1), torch.empty(1, tiers.row_format.units))
    everything = np.arange(SIZES["a"])
    for _ in range(3):
        # far more rows than slots: each is read from the file
        with newest_view(rows := TieredRows(stack)) as view:
            got = rows.gather(ranks(view, "a", everything)).numpy()
        np.testing.assert_array_equal(got, row_of(0, everything, latest))
    assert tiers.prefix.released >= 2500
    stack.close()


def test_the_hottest_rows_stay(stack: TierStack) -> None:
    prefix, releaser = stack.tiers.prefix, stack.releaser
    assert prefix is not None
    assert releaser is not None
    encoder = stack.views.newest.encoder
    assert encoder is not None
    releaser.release(3000)
    left = stack.tiers.layout
    kept = (prefix.ends[left.tier == 1] - left.starts[left.tier == 1]).tolist()
    assert sum(kept) == 150
    counts = [v.counts for v in encoder.vocabularies.values()]
    coldest_kept = min(int(c[n - 1]) for c, n in zip(counts, kept, strict=True) if n)
    hottest_released = max(int(c[n]) for c, n in zip(counts, kept, strict=True))
    assert coldest_kept >= hottest_released
    stack.close()


def test_no_batch_sees_a_wrong_row_while_rows_are_released_updated_and_reordered(stack: TierStack) -> None:
    updated = np.random.default_rng(0).permutation(SIZES["a"])[:300]
    is_updated = np.zeros(SIZES["a"], bool)
    is_updated[updated] = True
    stop = threading.Event()
    wrong: list[str] = []
    batches = [0, 0]

    def read(reader: int) -> None:
        random = np.random.default_rng(reader)
        rows = TieredRows(stack)
        while not stop.is_set() and not wrong:
            ids = random.permutation(SIZES["a"])[: int(random.integers(1, 2000))]
            with newest_view(rows) as view:
                got = rows.gather(ranks(view, "a", ids)).numpy()
            if not (got[:, 1] == ids).all() or not (got[:, 0] == 0).all():
                wrong.append("a row of another id")
            if np.unique(got[is_updated[ids]][:, 2:]).size > 1:
                wrong.append("half an update")
            if got[~is_updated[ids]][:, 2:].any():
                wrong.append("a row that was never updated has new values")
            batches[reader] += 1

    threads = [threading.Thread(target=read, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    prefix, releaser, drift = stack.tiers.prefix, stack.releaser, Drift(stack, memory=0.1)
    assert prefix is not None
    assert releaser is not None
    drift.sample.every = 1
    version = 0
    try:
        while prefix.releasable or version < 12:
            version += 1
            apply_update(stack, {"a": TableUpdate(updated, row_of(0, updated, version))})
            releaser.release(min(300, prefix.releasable))
            if version % 4 == 0:
                drift.reorder()
            if version % 3 == 0:
                assert stack.settle(10)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert min(batches) > 10
    assert stack.settle(10)
    look_up(stack, "a", updated, version)
    look_up(stack, "a", np.flatnonzero(~is_updated))
    stack.close()


def test_a_stale_calibration_makes_the_whole_memory_a_cache(stack: TierStack) -> None:
    encoder, prefix = stack.views.newest.encoder, stack.tiers.prefix
    assert encoder is not None
    assert prefix is not None
    rank_of_id = encoder.vocabularies["a"].rank_of_id
    random = np.random.default_rng(0)
    right = np.argsort(rank_of_id)
    for order in (right, right[::-1].copy()):
        start = stack.figures().levels["host"].hits
        for _ in range(60):
            look_up(stack, "a", order[np.minimum(random.zipf(1.3, 500) - 1, 5999)])
        if order is right:
            assert prefix.released == 0
            assert stack.figures().levels["host"].hits - start > 20_000
    assert prefix.releasable == 0
    stack.close()


def test_host_rows_stay_where_a_device_reads_them_by_their_addresses(tmp_path: Path) -> None:
    stack = world(encoder_of(SIZES), tmp_path, (0.1, 0.4, 0.5), cache_bytes=600_000)
    assert stack.tiers.prefix is None
    stack.close()


def test_hot_batches_are_gathered_like_any_while_rows_are_released(stack: TierStack) -> None:
    encoder, random = stack.views.newest.encoder, np.random.default_rng(2)
    assert encoder is not None
    prefix, releaser, layout = stack.tiers.prefix, stack.releaser, stack.tiers.layout
    assert prefix is not None
    assert releaser is not None
    rows, fused = TieredRows(stack), FusedRows(encoder.schema, SIZES)
    near = NearRows(layout, prefix, fused)
    hot = colder = 0
    for _ in range(60):
        drawn = {table: max(int(size * random.random() / 2), 1) for table, size in SIZES.items()}
        batch = random_batch(random, encoder.schema, drawn, int(random.integers(1, 30)))
        index = fused.lookups(batch).singles
        found = rows.gather_near(near, batch, np.empty(index.size, np.int64))
        ranges = layout.segments(index)
        assert (found is None) == bool((index >= prefix.ends.take(ranges)).any())
        if found is not None:
            hot += 1
            colder += near.colder(batch)
            np.testing.assert_array_equal(found, rows.gather(torch.from_numpy(index)).numpy())
            assert near.colder(batch) == prefix.hits(index, ranges)
            check_resolved(stack, stack.views.newest, near, batch, index)
        releaser.release(min(40, prefix.releasable))
    assert prefix.released > 1000
    assert 10 < hot < 60
    assert colder
    stack.close()


@pytest.mark.parametrize("way", ["gather", "resolve", "gather near", "resolve near"])
def test_a_prefix_that_hot_batches_used_is_released_when_it_answers_less(stack: TierStack, way: str) -> None:
    """Its share of the lookups falls only if hot batches are counted, in every way."""
    encoder, random = stack.views.newest.encoder, np.random.default_rng(3)
    assert encoder is not None
    prefix = stack.tiers.prefix
    assert prefix is not None
    rows, fused = TieredRows(stack), FusedRows(encoder.schema, SIZES)
    near = NearRows(stack.tiers.layout, prefix, fused)
    drawn = {table: int(size * 0.4) for table, size in SIZES.items()}
    for _ in range(100):
        batch = random_batch(random, encoder.schema, drawn, 20)
        index = fused.lookups(batch).singles
        if way == "gather":
            rows.gather(torch.from_numpy(index))
        elif way == "gather near":
            assert rows.gather_near(near, batch, index) is not None
        else:
            view = stack.views.newest
            near_found = stack.near.resolve(view, near, batch) if way == "resolve near" else None
            found = near_found or stack.resolve(view, index)
            assert (found is near_found) == (way == "resolve near")
            found.release()
    assert not prefix.released
    for _ in range(300):
        rows.gather(torch.from_numpy(random.integers(3000, 6000, 20)))
    assert prefix.released
    stack.close()
