from __future__ import annotations

import mmap

from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.disk.cache_division import (
    JOINING_SHARE,
    MAX_PAGES,
    PAGE_SHARE,
    CacheDivision,
    divide_cache,
)
from polyrec.models.tiers.disk.row_cache import SLOT_BYTES, RowCache
from polyrec.models.tiers.disk.staging import PAGE_SLOT_BYTES

PAGE_BYTES = 4096


def taken(division: CacheDivision, row_bytes: int, file_rows: int, host_rows: int) -> int:
    """Bytes of a cache divided like that, with its index."""
    index = RowCache(file_rows, division.slots, host_rows, division.joining).nbytes
    return division.slots * row_bytes + index + division.pages * (division.page_bytes + PAGE_SLOT_BYTES)


@given(
    cache_bytes=st.integers(40_000, 4_000_000),
    row_bytes=st.sampled_from([4, 24, 64, 256, 1024]),
    file_rows=st.integers(1, 300_000),
    host_rows=st.integers(0, 50_000),
    may_join=st.booleans(),
)
def test_a_cache_takes_its_bytes_and_hardly_less(
    cache_bytes: int, row_bytes: int, file_rows: int, host_rows: int, may_join: bool
) -> None:
    joining = host_rows if may_join else 0
    division = divide_cache(cache_bytes, row_bytes, PAGE_BYTES, file_rows, host_rows, joining)
    # the index also has entries for the rows of host memory, of which those that cannot join are not charged
    first = host_rows if division.joining else 0
    bytes_taken = taken(division, row_bytes, file_rows, first)
    assert bytes_taken <= cache_bytes
    if division.slots < file_rows:
        most_rounded = mmap.PAGESIZE + PAGE_BYTES + 2 * (row_bytes + SLOT_BYTES) + 1024
        assert bytes_taken > cache_bytes - most_rounded
    assert division.joining <= joining
    assert division.joining * SLOT_BYTES <= JOINING_SHARE * cache_bytes


@given(st.integers(1, 5_000_000), st.integers(40_000, 200_000_000))
def test_pages_are_a_share_of_the_cache_and_no_more_than_the_file_has(rows: int, cache_bytes: int) -> None:
    division = divide_cache(cache_bytes, 64, PAGE_BYTES, rows, 0, 0)
    in_file = -(-rows // 64)
    assert 1 <= division.pages <= min(in_file, MAX_PAGES)
    share = PAGE_SHARE * cache_bytes / (PAGE_BYTES + PAGE_SLOT_BYTES)
    if division.pages < min(in_file, MAX_PAGES):
        assert division.pages > share - 1
    assert division.pages <= max(share, 1)
    assert division.slots <= rows


def test_a_cache_of_less_than_a_page_has_one_slot_of_a_page_and_none_of_rows() -> None:
    assert divide_cache(1, 64, PAGE_BYTES, 1000, 0, 0) == CacheDivision(0, 1, PAGE_BYTES, 0)
