from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.layout import DISK, HOST, MAX_STEPS, REMOTE, SMALL, TIERS, RowLocations, TierLayout

CUTS = st.lists(st.tuples(*[st.integers(0, 9)] * 4), min_size=1, max_size=5).filter(
    lambda cuts: sum(map(sum, cuts)) > 0
)


@given(CUTS)
def test_every_row_has_one_place_and_a_tier_has_the_next_hottest_ranks(cuts: list[tuple[int, ...]]) -> None:
    sizes = {f"t{i}": sum(c) for i, c in enumerate(cuts)}
    layout = TierLayout(sizes, {f"t{i}": c for i, c in enumerate(cuts)})
    tier, local = layout.locate(np.arange(layout.total))
    expected = [t for held in cuts for t, n in enumerate(held) for _ in range(n)]
    assert tier.tolist() == expected
    for number in range(len(TIERS)):
        own = local[tier == number]
        if number != DISK:
            assert own.tolist() == list(range(layout.rows[number]))
        assert layout.rows_of(number).tolist() == np.flatnonzero(tier == number).tolist()
    # remote rows take no room in the file
    filed = {t: sum(c) - c[REMOTE] for t, c in zip(sizes, cuts, strict=True) if c[DISK]}
    assert layout.filed == filed
    assert layout.file_rows == sum(filed.values())
    in_file = [layout.base[t] + rank for t, rows in filed.items() for rank in range(rows)]
    assert [in_file[a] for a in local[tier == DISK]] == np.flatnonzero(tier == DISK).tolist()


def test_a_table_without_cuts_is_in_host_memory() -> None:
    layout = TierLayout({"a": 3, "b": 2}, {"b": (1, 0, 1, 0)})
    assert layout.cuts["a"] == (0, 3, 0, 0)
    with pytest.raises(ValueError, match="table 'a' has 3 rows, its tier cuts are"):
        TierLayout({"a": 3}, {"a": (1, 1, 0, 0)})


@pytest.mark.parametrize(("largest", "steps"), [(1, 15), (3, MAX_STEPS)])
def test_many_tables_in_one_block_are_located(largest: int, steps: int) -> None:
    layout = TierLayout({f"t{i}": 1 + i % largest for i in range(60)}, {})
    rows = np.random.default_rng(0).integers(0, layout.total, 1000)
    assert layout._steps == steps
    assert (layout.segments(rows) == np.searchsorted(layout.starts, rows, side="right") - 1).all()


@given(CUTS)
def test_few_rows_are_located_like_many(cuts: list[tuple[int, ...]]) -> None:
    sizes = {f"t{i}": sum(c) for i, c in enumerate(cuts)}
    layout = TierLayout(sizes, {f"t{i}": c for i, c in enumerate(cuts)})
    few = np.arange(layout.total)
    many = np.tile(few, SMALL + 1)
    for part, whole in zip(layout.locate(few), layout.locate(many), strict=True):
        assert np.array_equal(np.tile(part, SMALL + 1), whole)


@given(CUTS, st.data())
def test_rows_are_in_memory_if_none_is_on_disk_or_remote(
    cuts: list[tuple[int, ...]], data: st.DataObject
) -> None:
    sizes = {f"t{i}": sum(c) for i, c in enumerate(cuts)}
    layout = TierLayout(sizes, {f"t{i}": c for i, c in enumerate(cuts)})
    rows = np.array(data.draw(st.lists(st.integers(0, layout.total - 1), max_size=4)), np.int64)
    tier, _ = layout.locate(rows)
    assert RowLocations.locate(layout, rows).in_memory == all(t <= HOST for t in tier.tolist())
