from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle import Bundle
from models.embeddings.cuts import stored_within
from models.errors import BundleError
from models.vocabulary import Vocabulary
from planner.profile import Memory, ProfileError
from planner.residency import (
    Missing,
    Tables,
    Tier,
    covered,
    cuts_within,
    missing,
    read_tables,
    resident_bytes,
)

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=5).map(lambda c: sorted(c, reverse=True))


def tables(counts: list[list[int]], row_bytes: list[float]) -> Tables:
    names = tuple(f"t{i}" for i in range(len(counts)))
    return Tables(names, tuple(np.array(c) for c in counts), tuple(row_bytes), 1.0)


@given(st.lists(COUNTS, min_size=1, max_size=3), st.integers(0, 16))
def test_rows_of_equal_length_are_chosen_as_well_as_exhaustive_search_can(
    counts: list[list[int]], rows: int
) -> None:
    made = tables(counts, [4.0] * len(counts))
    cuts = cuts_within(made, 4.0 * rows)
    assert resident_bytes(made, cuts) <= 4.0 * rows
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
    assert covered(made, found) == pytest.approx(covered(made, [expected.get(n, 0) for n in made.names]))


@given(
    st.lists(st.tuples(COUNTS, st.sampled_from([1.0, 2.0, 4.0])), min_size=1, max_size=3),
    st.floats(0, 60, allow_nan=False),
)
def test_one_threshold_on_accesses_per_byte_separates_resident_rows_from_the_others(
    drawn: list[tuple[list[int], float]], budget: float
) -> None:
    made = tables([c for c, _ in drawn], [b for _, b in drawn])
    cuts = cuts_within(made, budget)
    assert resident_bytes(made, cuts) <= budget
    inside = [float(d[n - 1]) for d, n in zip(made.densities, cuts, strict=True) if n]
    beyond = [float(d[n]) for d, n in zip(made.densities, cuts, strict=True) if n < d.size]
    if inside and beyond:
        assert min(inside) >= max(beyond) or max(beyond) == min(inside)
    # what is left is less than the next row
    left = budget - resident_bytes(made, cuts)
    threshold = max(beyond, default=0.0)
    next_rows = [b for d, n, b in zip(made.densities, cuts, made.row_bytes, strict=True)
                 if n < d.size and d[n] == threshold]  # fmt: skip
    assert all(left < b + 1e-9 for b in next_rows)


def test_a_miss_costs_latency_and_the_bytes_of_its_page() -> None:
    made = tables([[6, 2]], [100.0])
    beyond = missing(made, covered(made, (1,)), Tier("disk", 1e-4, 1e9, 4096))
    assert beyond.per_row == pytest.approx(0.25)
    assert beyond.seconds == pytest.approx(1e-4 + 4096e-9)
    assert beyond.median(40) == pytest.approx(10 * beyond.seconds)
    # 10 misses on average: 99 of 100 batches have at most 10 + 2.33 sqrt(10)
    assert beyond.tail(40) == pytest.approx((10 + 2.326 * 10**0.5) * beyond.seconds)


def test_nothing_missing_costs_nothing() -> None:
    assert Missing(0.0, 1.0).tail(100) == 0.0


def test_a_bundles_tables_are_read_with_its_access_counts(bundle: Bundle) -> None:
    stage_rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    found = read_tables(bundle.path, Memory(tables={t: 32 * n for t, n in stage_rows.items()}, fixed=0))
    assert dict(zip(found.names, (c.size for c in found.counts), strict=True)) == stage_rows
    assert set(found.row_bytes) == {32.0}
    singles = [f for f in bundle.manifest.schema_.slots if not f.multi]
    # every single-valued feature is looked up once a row, bags on top
    assert len(singles) <= found.lookups <= len(singles) + 20
    for name, counts in zip(found.names, found.counts, strict=True):
        np.testing.assert_array_equal(counts, bundle.encoder.vocabularies[name].counts)


def test_a_profile_of_another_bundle_is_told(bundle: Bundle) -> None:
    with pytest.raises(ProfileError, match="not the one that was profiled: it stores no rows of table 'x'"):
        read_tables(bundle.path, Memory(tables={"x": 10}, fixed=0))


def test_a_missing_bundle_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no bundle at"):
        read_tables(tmp_path, Memory(tables={}, fixed=0))
