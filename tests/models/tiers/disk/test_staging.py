from __future__ import annotations

import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.disk.row_index import NOWHERE
from polyrec.models.tiers.disk.staging import ENTRY_BYTES, StagedPages


@given(st.integers(0, 2**32))
def test_pages_take_the_oldest_unpinned_slots_one_after_another(seed: int) -> None:
    random = np.random.default_rng(seed)
    slots, pages = int(random.integers(1, 20)), int(random.integers(1, 60))
    staged = StagedPages(slots)
    held: list[int] = [NOWHERE] * slots  # the page of each slot
    hand = 0
    for _ in range(20):
        wanted = random.permutation(pages)[: int(random.integers(0, 30))]
        expected = [held.index(page) if page in held else NOWHERE for page in wanted.tolist()]
        found = staged.find(wanted)
        assert found.tolist() == expected
        new = wanted[found == NOWHERE]
        free = [s for s in [(hand + i) % slots for i in range(slots)] if not staged.pins[s]][: new.size]
        for page, slot in zip(new.tolist(), free, strict=False):
            held[slot], hand = page, (slot + 1) % slots
        assert staged.claim(new).tolist() == free
        staged.pins[:] = random.random(slots) < random.random()
        gone = random.permutation(slots)[: int(random.integers(0, 3))]
        staged.drop(gone)
        held = [NOWHERE if slot in gone else page for slot, page in enumerate(held)]


def test_an_entry_takes_no_more_memory_than_is_counted_for_it() -> None:
    # 684: one more than makes a dictionary grow to room for twice as many
    for slots, at_once in ((1, 1), (8, 8), (684, 1), (4096, 4096)):
        staged = StagedPages(slots)
        for first in range(0, 2 * slots + 8 * at_once, at_once):
            staged.claim(10**6 + first + np.arange(at_once))
            index = staged._slot_of_page
            # the allocator gives a number of 28 bytes 32
            numbers = 64 * len(index)
            # an empty dictionary has room for five
            assert sys.getsizeof(index) - sys.getsizeof({0: 0}) + numbers <= ENTRY_BYTES * slots
