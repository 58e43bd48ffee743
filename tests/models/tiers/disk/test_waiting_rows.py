from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.disk.waiting_rows import MAX_ROWS, PAGE_SHARE, WaitingRows


@given(st.integers(0, 2**32))
def test_rows_that_were_added_are_taken_once_with_their_look_ups_and_place(seed: int) -> None:
    random = np.random.default_rng(seed)
    slots, rows_a_page = int(random.integers(1, 200)), int(random.integers(1, 5))
    pins = random.integers(0, 3, slots).astype(np.int32)
    others = pins.copy()
    waiting = WaitingRows(pins)
    for _ in range(3):
        lookups: Counter[int] = Counter()
        for _ in range(int(random.integers(1, 6))):
            added = random.integers(0, slots * rows_a_page, int(random.integers(0, 30)))
            # a page stays in its slot while it is pinned
            waiting.add(added, added // rows_a_page, added % rows_a_page)
            lookups.update(added.tolist())
            held = np.zeros(slots, np.int32)
            for row, count in lookups.items():
                held[row // rows_a_page] += count
            assert (pins == others + held).all()
            assert waiting.many == (lookups.total() > min(MAX_ROWS, int(slots * PAGE_SHARE)))
        rows, slot, place, wanted = waiting.take()
        assert dict(zip(rows.tolist(), wanted.tolist(), strict=True)) == lookups
        assert (slot == rows // rows_a_page).all()
        assert (place == rows % rows_a_page).all()
        assert (np.diff(wanted) <= 0).all()
        assert (pins == others).all()
        assert not waiting.many


def test_a_large_cache_lets_no_more_wait_than_a_small_one() -> None:
    waiting = WaitingRows(np.zeros(100 * MAX_ROWS, np.int32))
    for count, many in ((MAX_ROWS, False), (1, True)):
        waiting.add(*np.zeros((3, count), np.int64))
        assert waiting.many is many
