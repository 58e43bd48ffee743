from __future__ import annotations

from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk import row_cache as module
from polyrec.models.tiers.disk.page_cache import NOWHERE
from polyrec.models.tiers.disk.row_cache import ROW_INDEX_BYTES, WAYS, RowCache


@given(st.integers(0, 2**32))
def test_rows_are_found_where_they_were_put_and_pinned_ones_stay(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, slots = int(random.integers(1, 400)), int(random.integers(0, 70))
    cache = RowCache(rows, slots)
    assert slots - WAYS < cache.slots <= slots
    stands: dict[int, int] = {}  # slot -> row, as a reader of the slots has it
    pinned: dict[int, int] = {}
    for _ in range(20):
        wanted = random.permutation(rows)[: int(random.integers(0, 40))]
        found = cache.find(wanted)
        for row, slot in zip(wanted.tolist(), found.tolist(), strict=True):
            assert (slot == NOWHERE) == (row not in stands.values())
            assert slot == NOWHERE or stands[slot] == row
        cache.use(found[found != NOWHERE])
        new = wanted[found == NOWHERE]
        got, which = cache.claim(new)
        assert np.unique(got).size == got.size == np.unique(which).size
        assert not set(got.tolist()) & set(pinned)
        stands |= dict(zip(got.tolist(), new[which].tolist(), strict=True))
        if got.size and random.random() < 0.5:
            cache.pins[got[0]] += 1
            pinned[int(got[0])] = stands[int(got[0])]
        elif pinned:
            cache.pins[pinned.popitem()[0]] -= 1
        for slot, row in pinned.items():
            assert cache.find(np.array([row]))[0] == slot


@given(st.integers(0, 2**32))
def test_within_one_set_it_is_a_cache_of_the_least_recently_used(seed: int) -> None:
    random = np.random.default_rng(seed)
    cache = RowCache(60, WAYS)
    lru: OrderedDict[int, None] = OrderedDict()
    for row in np.minimum(random.zipf(1.2, 300) - 1, 59).tolist():
        found = cache.find(np.array([row]))
        assert (found[0] != NOWHERE) == (row in lru)
        cache.use(found[found != NOWHERE])
        if row not in lru:
            cache.claim(np.array([row]))
            if len(lru) == WAYS:
                lru.popitem(last=False)
        lru[row] = None
        lru.move_to_end(row)


def claimed_one_by_one(cache: RowCache, rows: I64) -> list[tuple[int, int]]:
    """Reference for `claim`: each row in turn takes the least recently used slot of its set."""
    ways = cache._row.shape[1]
    given: list[tuple[int, int]] = []
    for which, row in enumerate(rows.tolist()):
        first = row % cache._sets * ways
        free = [s for s in range(first, first + ways) if not cache.pins[s] and s not in dict(given)]
        if free:
            given.append((min(free, key=lambda s: cache._used.ravel()[s]), which))
    return given


@given(st.integers(0, 2**32))
def test_claiming_rows_together_equals_claiming_one_by_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    cache = RowCache(500, int(random.integers(1, 5)) * WAYS)
    for _ in range(10):
        wanted = random.permutation(500)[: int(random.integers(0, 120))]
        found = cache.find(wanted)
        cache.use(found[found != NOWHERE])
        new = wanted[found == NOWHERE]
        cache.pins[:] = random.random(cache.slots) < 0.3
        pins = cache.pins.copy()
        expected = claimed_one_by_one(cache, new)
        slots, which = cache.claim(new)
        assert list(zip(slots.tolist(), which.tolist(), strict=True)) == expected
        assert (cache.find(new[which]) == slots).all()
        assert (cache.pins == pins).all()


def test_of_too_many_rows_the_most_popular_are_kept() -> None:
    cache = RowCache(1000, WAYS)
    slots, which = cache.claim(np.arange(40, 100))
    assert which.tolist() == list(range(WAYS))
    assert (cache.find(np.arange(40, 40 + WAYS)) == slots).all()


def test_the_use_counter_wraps_around() -> None:
    cache = RowCache(100, WAYS)
    cache.claim(np.arange(WAYS))
    cache._now = module.LATEST - 3
    for row in range(WAYS):
        cache.use(cache.find(np.array([row])))
    # the order of use outlives the halving of the clock
    cache.claim(np.array([50]))
    assert cache.find(np.array([0]))[0] == NOWHERE
    assert (cache.find(np.arange(1, WAYS)) != NOWHERE).all()


def test_the_index_has_the_documented_size() -> None:
    cache = RowCache(10_000, 1600)
    assert cache.nbytes == 1600 * ROW_INDEX_BYTES
