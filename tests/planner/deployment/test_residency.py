from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.embeddings.cuts import stored_within
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.deployment.residency import Tables, cuts_within, residency, rows_reached

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=5).map(lambda c: sorted(c, reverse=True))


def tables(counts: list[list[int]], row_bytes: list[float]) -> Tables:
    names = tuple(f"t{i}" for i in range(len(counts)))
    ranked = tuple(RankedAccesses.from_counts(np.array(c)) for c in counts)
    return Tables(names, ranked, tuple(row_bytes), 1.0)


@given(st.lists(COUNTS, min_size=1, max_size=3), st.integers(0, 16))
def test_rows_of_equal_length_are_chosen_as_well_as_exhaustive_search_can(
    counts: list[list[int]], rows: int
) -> None:
    made = tables(counts, [4.0] * len(counts))
    cuts = cuts_within(made, 4.0 * rows)
    assert residency(made, cuts).bytes <= 4.0 * rows
    best = max(
        sum(sum(c[:n]) for c, n in zip(counts, tried, strict=True))
        for tried in product(*(range(len(c) + 1) for c in counts))
        if sum(tried) <= rows
    )
    assert sum(sum(c[:n]) for c, n in zip(counts, cuts, strict=True)) == best


@given(st.lists(COUNTS, min_size=1, max_size=3), st.integers(0, 16))
def test_a_budget_in_rows_gives_what_select_stores(counts: list[list[int]], rows: int) -> None:
    made = tables(counts, [1.0] * len(counts))
    ranks = [np.arange(len(c)) for c in counts]
    vocabularies = {
        name: Vocabulary(name, "integer", r.size, r, np.array(c), specials=False)
        for name, c, r in zip(made.names, counts, ranks, strict=True)
    }
    expected = stored_within(vocabularies, rows)
    found = cuts_within(made, float(rows))
    # equally accessed rows may be taken from either table
    assert sum(found) == sum(expected.values())
    as_good = residency(made, tuple(expected.get(n, 0) for n in made.names))
    assert residency(made, found).lookups == pytest.approx(as_good.lookups)


@given(
    st.lists(st.tuples(COUNTS, st.sampled_from([1.0, 2.0, 4.0])), min_size=1, max_size=3),
    st.floats(0, 60, allow_nan=False),
)
def test_one_threshold_on_accesses_per_byte_separates_resident_rows_from_the_others(
    drawn: list[tuple[list[int], float]], budget: float
) -> None:
    made = tables([c for c, _ in drawn], [b for _, b in drawn])
    cuts = cuts_within(made, budget)
    assert residency(made, cuts).bytes <= budget
    densities = [np.array(c) / b for c, b in drawn]
    inside = [float(d[n - 1]) for d, n in zip(densities, cuts, strict=True) if n]
    beyond = [float(d[n]) for d, n in zip(densities, cuts, strict=True) if n < d.size]
    if inside and beyond:
        assert min(inside) >= max(beyond)
    # what is left is less than the next row
    left = budget - residency(made, cuts).bytes
    threshold = max(beyond, default=0.0)
    next_rows = [b for d, n, b in zip(densities, cuts, made.row_bytes, strict=True)
                 if n < d.size and d[n] == threshold]  # fmt: skip
    assert all(left < b + 1e-9 for b in next_rows)


@given(st.lists(COUNTS, min_size=1, max_size=3), st.integers(0, 6), st.integers(0, 6))
def test_memory_disk_and_remote_are_divided_as_well_as_exhaustive_search_can(
    counts: list[list[int]], memory_rows: int, disk_rows: int
) -> None:
    made = tables(counts, [4.0] * len(counts))
    cuts = cuts_within(made, 4.0 * memory_rows)
    reach = rows_reached(made, cuts, 4.0 * disk_rows)
    assert all(n <= down <= len(c) for n, down, c in zip(cuts, reach, counts, strict=True))
    assert sum(reach) - sum(cuts) <= disk_rows

    def cost(n: int, down: int, table: list[int]) -> int:
        """A lookup costs nothing in memory, 2 on disk, 5 in the remote store."""
        return 2 * sum(table[n:down]) + 5 * sum(table[down:])

    each = [
        [(n, down, cost(n, down, c)) for n in range(len(c) + 1) for down in range(n, len(c) + 1)]
        for c in counts
    ]
    best = min(
        sum(spent for *_, spent in tried)
        for tried in product(*each)
        if sum(n for n, *_ in tried) <= memory_rows and sum(down - n for n, down, _ in tried) <= disk_rows
    )
    assert sum(cost(n, down, c) for n, down, c in zip(cuts, reach, counts, strict=True)) == best


def test_rows_that_exceed_the_next_memory_lie_beyond_it() -> None:
    made = tables([[9, 5, 1], [8, 4, 0]], [4.0, 4.0])
    assert rows_reached(made, (1, 1), 4.0) == (2, 1)
    assert rows_reached(made, (1, 1), 0.0) == (1, 1)
    assert rows_reached(made, (1, 1), 1e9) == (3, 3)
    assert rows_reached(made, (3, 3), 8.0) == (3, 3)
