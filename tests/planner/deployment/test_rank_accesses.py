from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.deployment.rank_accesses import RankedAccesses

COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=12).map(lambda c: np.array(sorted(c, reverse=True)))


@given(COUNTS, st.integers(0, 13))
def test_runs_equal_the_counts(counts: np.ndarray, rank: int) -> None:
    ranked = RankedAccesses.from_counts(counts)
    assert ranked.size == counts.size
    assert ranked.total == counts.sum()
    assert ranked.before(rank) == pytest.approx(counts[:rank].sum())
    for part, expected in ((ranked.until(rank), counts[:rank]), (ranked.beyond(rank), counts[rank:])):
        np.testing.assert_array_equal(np.repeat(part.accesses, part.rows), expected)
    assert ranked.scaled(0.5).total == pytest.approx(counts.sum() / 2)


def test_no_rows_are_no_runs() -> None:
    none = RankedAccesses.from_counts(np.empty(0, np.int64))
    assert (none.size, none.total, none.before(0)) == (0, 0.0, 0.0)
