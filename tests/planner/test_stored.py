from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.bundle import Bundle
from models.errors import BundleError
from planner.profile import Memory, ProfileError
from planner.ranked import Ranked
from planner.stored import read_tables


def test_a_bundles_tables_are_read_with_its_access_counts(bundle: Bundle) -> None:
    stage_rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    found = read_tables(bundle.path, Memory(tables={t: 32 * n for t, n in stage_rows.items()}, fixed=0))
    assert dict(zip(found.names, (t.size for t in found.ranked), strict=True)) == stage_rows
    assert set(found.row_bytes) == {32.0}
    singles = [f for f in bundle.manifest.schema_.slots if not f.multi]
    # every single-valued feature is looked up once a row, bags on top
    assert len(singles) <= found.lookups <= len(singles) + 20
    for name, ranked in zip(found.names, found.ranked, strict=True):
        counts = Ranked.of(bundle.encoder.vocabularies[name].counts)
        np.testing.assert_array_equal(ranked.accesses, counts.accesses)
        np.testing.assert_array_equal(ranked.rows, counts.rows)


def test_a_profile_of_another_bundle_is_told(bundle: Bundle) -> None:
    with pytest.raises(ProfileError, match="not the one that was profiled: it stores no rows of table 'x'"):
        read_tables(bundle.path, Memory(tables={"x": 10}, fixed=0))


def test_a_missing_bundle_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no bundle at"):
        read_tables(tmp_path, Memory(tables={}, fixed=0))
