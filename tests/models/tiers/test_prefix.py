from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.layout import HOST, TierLayout
from polyrec.models.tiers.prefix import Prefix, share_with_cache
from polyrec.models.tiers.tier_settings import TierSettings


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
