"""Runs of ranks against rank by rank, and expected distinct rows against draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.training.description import DescribedTable
from polyrec.planner.training.popularity import described_popularity, zipf_accesses


@pytest.mark.parametrize("rows", [1, 7, 64, 65, 5000, 300_000])
@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 1.05, 2.0])
def test_runs_have_the_look_ups_of_their_ranks(rows: int, exponent: float) -> None:
    found = zipf_accesses(rows, exponent, 3.0)
    weights = np.arange(1, rows + 1) ** -exponent
    exact = 3.0 * np.cumsum(weights) / weights.sum()
    assert found.size == rows
    assert found.total == pytest.approx(3.0)
    np.testing.assert_allclose(
        np.cumsum(found.accesses * found.rows), exact[np.cumsum(found.rows) - 1], rtol=1e-3
    )
    assert (np.diff(found.accesses) <= 1e-12).all()


@given(st.lists(st.tuples(st.integers(1, 3000), st.floats(0, 2)), min_size=1, max_size=4), st.data())
def test_ranks_of_all_tables_are_cut_exactly(tables: list[tuple[int, float]], data: st.DataObject) -> None:
    described = [DescribedTable(name=f"t{i}", rows=r, zipf=z) for i, (r, z) in enumerate(tables)]
    popularity = described_popularity(described, 1.0)
    assert popularity.total_rows == sum(r for r, _ in tables)
    first = data.draw(st.integers(0, popularity.total_rows))
    last = data.draw(st.integers(first, popularity.total_rows))
    by_rank = np.repeat(popularity.table, popularity.rows)[first:last]
    expected = {f"t{i}": int((by_rank == i).sum()) for i in range(len(tables))}
    found = popularity.by_table(popularity.between(first, last))
    assert found == {name: n for name, n in expected.items() if n}


def test_distinct_rows_are_those_of_draws() -> None:
    popularity = described_popularity([DescribedTable(name="t", rows=5000, zipf=1.05, lookups=2)], 1.0)
    random = np.random.default_rng(0)
    p = np.arange(1, 5001) ** -1.05
    draws = [np.unique(random.choice(5000, 2 * 400, p=p / p.sum())).size for _ in range(50)]
    assert popularity.distinct(400, popularity.rows) == pytest.approx(np.mean(draws), rel=0.02)
