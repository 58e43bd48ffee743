from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.opening import hottest


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=4), st.integers(0, 40))
def test_the_hottest_rows_of_all_tables_are_those_of_a_sort(drawn: list[list[int]], rows: int) -> None:
    counts = [np.array(sorted(own, reverse=True), np.int64) for own in drawn]
    taken = hottest(counts, rows)
    every = np.concatenate(counts)
    assert sum(taken) == min(rows, every.size)
    got = sum(int(own[:n].sum()) for own, n in zip(counts, taken, strict=True))
    assert got == np.sort(every)[::-1][:rows].sum()
