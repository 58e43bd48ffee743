from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tiers import rivals
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.row_cache import SLOT_BYTES, UNUSED_SLOT_BYTES, RowCache
from polyrec.models.tiers.disk.row_index import NOWHERE


def check(cache: RowCache) -> None:
    """Every slot is in one queue, once, and no row in two slots."""
    queued = np.concatenate((cache._small, cache._main))
    assert np.unique(queued).size == queued.size == cache.slots
    rows = cache.index.key(np.arange(cache.pins.size))
    held = rows[rows != NOWHERE]
    assert np.unique(held).size == held.size
    assert np.isin(np.flatnonzero(rows != NOWHERE), queued).all()


@given(st.integers(0, 2**32))
def test_rows_are_found_where_they_were_put_and_pinned_ones_stay(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, slots, first = (int(random.integers(low, high)) for low, high in ((1, 400), (0, 70), (0, 30)))
    cache = RowCache(rows, slots, first, first)
    joined = 0
    holds: dict[int, int] = {}  # slot -> row, as a reader of the slots has it
    if random.random() < 0.5:
        filled, which = cache.fill(random.permutation(rows)[: slots + 5])
        holds = dict(zip(filled.tolist(), which.tolist(), strict=True))
        holds = {s: int(cache.index.key(np.array([s]))[0]) for s in holds}
    pinned: dict[int, int] = {}
    for _ in range(20):
        if joined < first and random.random() < 0.2:
            count = int(random.integers(1, first - joined + 1))
            new = np.setdiff1d(random.permutation(rows), cache.index.key(np.arange(cache.pins.size)))
            new = random.permutation(new)[:count]
            cache.join(new, joined + np.arange(new.size))
            joined += new.size
            check(cache)
            for slot in range(joined):
                row = int(cache.index.key(np.array([slot]))[0])
                if row != NOWHERE:
                    holds[slot] = row
        wanted = random.permutation(rows)[: int(random.integers(0, 40))]
        found = cache.find(wanted)
        for row, slot in zip(wanted.tolist(), found.tolist(), strict=True):
            assert slot == NOWHERE or holds[slot] == row
        cache.use(found[found != NOWHERE])
        new = wanted[found == NOWHERE]
        got, which = cache.claim(new, random.integers(0, 5, new.size))
        assert np.unique(got).size == got.size == np.unique(which).size
        assert not set(got.tolist()) & set(pinned)
        check(cache)
        holds |= dict(zip(got.tolist(), new[which].tolist(), strict=True))
        if got.size and random.random() < 0.5:
            cache.pins[got[0]] += 1
            pinned[int(got[0])] = holds[int(got[0])]
        elif pinned:
            cache.pins[pinned.popitem()[0]] -= 1
        for slot, row in pinned.items():
            assert cache.find(np.array([row]))[0] == slot
    for slot in pinned:
        cache.pins[slot] -= 1
    assert not cache.pins.any()


def hit_rate(cache: RowCache, warm: I64, lookups: I64, batch: int) -> float:
    hits = 0
    for phase, part in enumerate((warm, lookups)):
        for start in range(0, part.size, batch):
            rows = part[start : start + batch]
            found = cache.find(rows)
            cache.use(found[found != NOWHERE])
            missing, repeats = np.unique(rows[found == NOWHERE], return_counts=True)
            cache.claim(missing, repeats - 1)
            hits += phase * (rows.size - missing.size)
    return hits / lookups.size


@pytest.mark.parametrize("batch", [1, 256])
@pytest.mark.parametrize("size", [50, 400])
def test_its_hit_rate_is_that_of_s3_fifo_one_look_up_at_a_time(size: int, batch: int) -> None:
    random = np.random.default_rng(0)
    share = np.cumsum(np.arange(1, 4001) ** -0.9)
    lookups = random.permutation(4000)[np.searchsorted(share / share[-1], random.random(12_000))]
    ours = hit_rate(RowCache(4000, size), lookups[:4000], lookups[4000:], batch)
    assert ours > rivals.s3_fifo(lookups[:4000], lookups[4000:], size) - 0.01


def test_rows_looked_up_often_survive_a_scan() -> None:
    cache = RowCache(100_000, 100)
    often = np.arange(50)
    for _ in range(3):
        found = cache.find(often)
        cache.use(found[found != NOWHERE])
        cache.claim(often[found == NOWHERE])
    for start in range(1000, 30_000, 20):
        cache.claim(np.arange(start, start + 20))
        if start % 200 == 0:
            found = cache.find(often)
            cache.use(found[found != NOWHERE])
            cache.claim(often[found == NOWHERE])
    assert (cache.find(often) != NOWHERE).mean() > 0.9


def test_rows_that_are_no_longer_wanted_are_evicted() -> None:
    cache = RowCache(1000, 40)
    cache.fill(np.arange(40))
    for _ in range(3):
        cache.use(cache.find(np.arange(40)))
    now = np.arange(200, 230)
    for _ in range(20):
        found = cache.find(now)
        cache.use(found[found != NOWHERE])
        cache.claim(now[found == NOWHERE])
    assert (cache.find(now) != NOWHERE).all()


def test_a_cache_with_room_evicts_nothing() -> None:
    cache = RowCache(10_000, 1000)
    kept: OrderedDict[int, None] = OrderedDict()
    for row in range(0, 9000, 10):
        cache.claim(np.array([row]))
        kept[row] = None
    assert (cache.find(np.array(list(kept))) != NOWHERE).mean() > 0.98


def test_its_books_have_the_documented_size() -> None:
    assert RowCache(10_000, 4800).nbytes == pytest.approx(4800 * SLOT_BYTES, rel=0.01)
    # 3,000 at the start and 1,800 of 2,000 others that join later
    joined = RowCache(10_000, 3000, first=2000, joining=1800)
    assert joined.nbytes == pytest.approx(4800 * SLOT_BYTES + 200 * UNUSED_SLOT_BYTES, rel=0.01)
    assert joined.remembered == pytest.approx(4800, rel=0.01)
