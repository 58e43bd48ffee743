from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.tiers.layout import DEVICE, HOST, RowLocations, TierLayout
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.prefix.prefix import Prefix, share_with_cache
from polyrec.models.tiers.tier_settings import TierSettings
from tests.models.random_batches import random_batch, random_schema, random_table_rows


@given(st.integers(0, 2**32))
def test_rows_are_released_coldest_first_whatever_the_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = {t: int(random.integers(1, 60)) for t in "abc"}
    cuts = {}
    for table, n in sizes.items():
        host = int(random.integers(0, n + 1))
        cuts[table] = (0, host, n - host, 0)
    layout = TierLayout(sizes, cuts)
    counts = [np.sort(random.integers(0, 30, n))[::-1].copy() for n in sizes.values()]
    by_row = np.concatenate(counts)
    prefix = Prefix(layout, counts, 10**6)
    first = layout.rows_of(HOST)
    filed = [layout.is_filed[layout.segments(np.array([r]))[0]] for r in first.tolist()]
    left = set(first[np.array(filed, bool)].tolist())
    assert prefix.rows == len(left)
    while prefix.releasable:
        count = int(random.integers(1, prefix.releasable + 1))
        rows = prefix.coldest(count)
        assert set(rows.tolist()) <= left
        assert (np.diff(by_row[rows]) >= 0).all()
        left -= set(rows.tolist())
        assert not left or by_row[rows].max() <= min(by_row[r] for r in left)
        prefix.release(count)
        everything = np.arange(layout.total)
        segments = layout.segments(everything)
        kept = (layout.tier[segments] == HOST) & (everything < prefix.ends[segments])
        kept &= layout.is_filed[segments]
        assert set(everything[kept].tolist()) == left
        assert prefix.hits(everything, segments) == len(left) // 2
    assert not left


def test_the_cache_gets_its_share_of_the_memory() -> None:
    sizes = {"a": 1000, "b": 1000, "c": 10}
    counts = [np.arange(1000, 0, -1), np.arange(900, -100, -1).clip(0), np.ones(10, np.int64)]
    settings = TierSettings.model_validate(
        {
            "cuts": {"a": {"host": 600, "disk": 400}, "b": {"host": 100, "disk": 900}, "c": {"host": 10}},
            "cache_bytes": 10_000,
            "directory": "/",
        }
    )
    given = share_with_cache(settings, 100, sizes, counts)
    host = {t: c.host for t, c in given.cuts.items()}
    assert host["c"] == 10
    assert host["a"] + host["b"] == 400
    assert 100 * 400 + given.cache_bytes == 700 * 100 + 10_000
    assert given.cuts["a"].disk == 1000 - host["a"]
    # one threshold on accesses
    assert (host["a"], host["b"]) == (300, 100)
    assert share_with_cache(given, 100, sizes, counts) == given


@given(st.integers(0, 2**32))
def test_near_rows_are_those_that_the_layout_finds_in_host_memory(seed: int) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    sizes = random_table_rows(random, schema)
    cuts = {}
    for table, rows in sizes.items():
        device, host, disk = np.sort(random.integers(0, rows + 1, 3)).tolist()
        device *= random.random() < 0.2
        cuts[table] = (device, host - device, disk - host, rows - disk)
    layout = TierLayout(sizes, cuts)
    prefix = None
    if not layout.rows[DEVICE]:
        counts = [np.sort(random.integers(0, 30, n))[::-1] for n in sizes.values()]
        prefix = Prefix(layout, counts, 10**6)
        if prefix.releasable and random.random() < 0.5:
            prefix.release(int(random.integers(1, prefix.releasable + 1)))
    fused = FusedRows(schema, sizes)
    near = NearRows(layout, prefix, fused)
    for _ in range(5):
        hottest = {table: int(random.integers(1, rows + 1)) for table, rows in sizes.items()}
        contexts = None if random.random() < 0.5 else int(random.integers(1, 4))
        batch = random_batch(random, schema, hottest, int(random.integers(1, 6)), contexts)
        lookups = fused.lookups(batch)
        where = RowLocations.locate(layout, lookups.rows(), None if prefix is None else prefix.ends)
        bags = any(b.bags is not None and b.bags.rows.size for b in (lookups.context, lookups.candidate))
        others = near.others(batch)
        if bags:
            assert others is None
            continue
        far = np.flatnonzero(where.tier != HOST)
        # behind rows of a device they are left to the layout
        assert np.isin(far, others).all() if layout.rows[DEVICE] else np.array_equal(others, far)
        np.testing.assert_array_equal(near.rows(batch), where.rows)
        addresses = np.empty(where.rows.size, np.int64)
        near.addresses(batch, addresses)
        np.testing.assert_array_equal(np.delete(addresses, others), np.delete(where.local, others))
        if not others.size:
            counts = np.bincount(where.segment, minlength=layout.tier.size)
            np.testing.assert_array_equal(near.lookups(batch), counts)
