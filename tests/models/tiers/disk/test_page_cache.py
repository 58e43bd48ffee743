from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.disk.page_cache import NOWHERE, CacheSettings, PageCache


def check(cache: PageCache) -> None:
    """Pages and slots point at each other, and every slot is in the window or the main part, once."""
    held = np.flatnonzero(cache.slot_of_page != NOWHERE)
    assert (cache.page_of_slot[cache.slot_of_page[held]] == held).all()
    assert (cache.page_of_slot != NOWHERE).sum() == held.size
    parts = np.concatenate((cache._window, cache._main))
    assert sorted(parts.tolist()) == list(range(cache.slots))


@given(st.integers(0, 2**32))
def test_the_index_is_consistent_and_pinned_pages_stay(seed: int) -> None:
    random = np.random.default_rng(seed)
    pages, slots = int(random.integers(1, 60)), int(random.integers(1, 20))
    heat = random.random(pages) if random.random() < 0.5 else None
    cache = PageCache(
        pages, slots, heat, CacheSettings(float(random.random()), float(random.integers(1, 20)))
    )
    if random.random() < 0.5:
        cache.fill(random.permutation(pages))
    pinned: dict[int, int] = {}
    for _ in range(30):
        wanted = random.permutation(pages)[: int(random.integers(0, pages + 1))]
        cache.touch(wanted)
        missing = wanted[cache.slot_of_page[wanted] == NOWHERE]
        got = cache.claim(missing)
        assert np.unique(got).size == got.size
        assert got.size == min(missing.size, slots - len(pinned)) or got.size < missing.size
        assert (cache.page_of_slot[got] == missing[: got.size]).all()
        check(cache)
        for page, slot in pinned.items():
            assert cache.slot_of_page[page] == slot
        if random.random() < 0.5 and got.size:
            slot = int(got[0])
            cache.pins[slot] += 1
            pinned[int(cache.page_of_slot[slot])] = slot
        elif pinned:
            cache.pins[pinned.popitem()[1]] -= 1
        free = np.flatnonzero(cache.pins == 0)
        dropped = cache.page_of_slot[free][:2].astype(np.int64)
        cache.drop(dropped)
        check(cache)


def test_a_page_read_often_is_not_displaced_by_pages_read_once() -> None:
    cache = PageCache(10_000, 100)
    often = np.arange(50)
    cache.claim(often)
    for _ in range(20):
        cache.touch(often)
    for start in range(1000, 9000, 20):
        passing = np.arange(start, start + 20)
        cache.touch(passing)
        cache.claim(passing)
        cache.touch(often)
        back = often[cache.slot_of_page[often] == NOWHERE]
        cache.claim(back)
    assert (cache.slot_of_page[often] != NOWHERE).mean() > 0.9


def test_formerly_hot_pages_are_evicted() -> None:
    cache = PageCache(400, 40, np.r_[np.full(40, 100.0), np.ones(360)])
    cache.fill(np.arange(40))
    now = np.arange(200, 230)
    for _ in range(300):
        cache.touch(now)
        cache.claim(now[cache.slot_of_page[now] == NOWHERE])
    assert (cache.slot_of_page[now] != NOWHERE).all()


@pytest.mark.parametrize("slots", [20, 80])
def test_it_finds_more_than_lru_where_accesses_are_skewed(slots: int) -> None:
    random = np.random.default_rng(0)
    accesses = np.minimum(random.zipf(1.2, 30_000) - 1, 1999)
    cache = PageCache(2000, slots)
    lru: dict[int, None] = {}
    ours = theirs = 0
    for page in accesses.tolist():
        one = np.array([page])
        cache.touch(one)
        if cache.slot_of_page[page] == NOWHERE:
            cache.claim(one)
        else:
            ours += 1
        if page in lru:
            theirs += 1
            del lru[page]
        elif len(lru) == slots:
            del lru[next(iter(lru))]
        lru[page] = None
    assert ours > theirs


def test_in_a_roomy_cache_pages_go_in_the_order_in_which_they_came() -> None:
    few = CacheSettings(roomy=5)
    assert few.for_pages(4) == few
    cache = PageCache(100, 4, np.arange(100.0), few.for_pages(8))
    for page in (5, 6, 7, 8):
        cache.claim(np.array([page]))
        cache.touch(np.full(1, 5))
    cache.claim(np.array([9, 10]))
    assert np.flatnonzero(cache.slot_of_page != NOWHERE).tolist() == [7, 8, 9, 10]
