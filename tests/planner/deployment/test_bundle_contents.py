from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import BundleError
from polyrec.planner.deployment.bundle_contents import expected_accesses, read_tables
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.profile import Memory, ProfileError


def test_a_bundles_tables_are_read_with_its_access_counts(bundle: Bundle) -> None:
    stage_rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    memory = Memory(tables={t: 32 * n for t, n in stage_rows.items()}, fixed=0)
    found = read_tables(bundle.path, bundle.manifest, memory)
    assert dict(zip(found.names, (t.size for t in found.accesses_by_rank), strict=True)) == stage_rows
    assert set(found.row_bytes) == {32.0}
    candidate = bundle.manifest.schema_.candidate.singles
    # every single-valued feature of candidates is looked up once a row, contexts once a request
    assert len(candidate) <= found.lookups <= len(candidate) + 2
    for name, ranked in zip(found.names, found.accesses_by_rank, strict=True):
        counts = RankedAccesses.from_counts(expected_accesses(bundle.encoder.vocabularies[name].counts))
        np.testing.assert_array_equal(ranked.accesses, counts.accesses)
        np.testing.assert_array_equal(ranked.rows, counts.rows)


def test_a_profile_of_another_bundle_raises(bundle: Bundle) -> None:
    with pytest.raises(ProfileError, match="not the one that was profiled: it stores no rows of table 'x'"):
        read_tables(bundle.path, bundle.manifest, Memory(tables={"x": 10}, fixed=0))


def test_a_bundle_without_counts_raises(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        read_tables(tmp_path, bundle.manifest, Memory(tables={}, fixed=0))


def test_a_sample_predicts_accesses_of_rows_that_it_missed() -> None:
    random = np.random.default_rng(5)
    chances = 1 / np.arange(1, 20_001)
    chances /= chances.sum()
    sample = np.sort(random.multinomial(10_000, chances))[::-1]
    ranked = RankedAccesses.from_counts(expected_accesses(sample))
    seen = int(np.count_nonzero(sample))
    order = np.argsort(-random.multinomial(10_000, chances), kind="stable")
    # what rows that another sample of the same size did not see get of all accesses
    truth = chances[order[seen:]].sum()
    assert 1 - ranked.before(seen) / ranked.total == pytest.approx(truth, rel=0.1)
    assert truth > 0.2


def test_counts_without_gaps_stay_as_they_are() -> None:
    counts = np.array([5, 3, 1])
    np.testing.assert_array_equal(expected_accesses(counts), counts)
    np.testing.assert_array_equal(expected_accesses(np.zeros(3, np.int64)), np.zeros(3))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_expected_accesses_keep_the_order(drawn: list[int]) -> None:
    counts = np.array(sorted(drawn, reverse=True))
    found = expected_accesses(counts)
    assert (np.diff(found) <= 1e-12).all()
    assert (found >= 0).all()
