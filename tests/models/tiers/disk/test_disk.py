from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk import disk as module
from polyrec.models.tiers.disk.disk import AHEAD_BATCHES, DiskTier
from polyrec.models.tiers.disk.page_file import write_pages
from polyrec.models.tiers.disk.pinned_rows import PinnedRows
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Bytes, Slab

PAGES, SLOTS = 64, 8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    """64 pages of 16 rows, 8 of them in memory, no room for single rows."""
    slab = Slab(RowFormat(64, "fp32"), 0, SLOTS, 4096)
    rows = PAGES * slab.rows_a_page
    write_pages(tmp_path / "rows", slab, [np.zeros((rows, 256), np.uint8)])
    tier = DiskTier(tmp_path / "rows", slab, rows)
    yield tier
    tier.close()


def look_up(disk: DiskTier, *pages: int) -> int:
    """Number of pages that a batch had to read."""
    held = disk.acquire(np.array(pages, np.int64) * 16)
    disk.ready(held)
    disk.release(held)
    return held.pages_read


def test_prefetched_pages_are_cached_for_their_batch(disk: DiskTier) -> None:
    assert disk.prefetch(np.array([40, 41, 42])).pages == 3
    for first in range(0, 24, 4):
        assert look_up(disk, *range(first, first + 4)) == 4
    assert look_up(disk, 40, 41, 42) == 0


def test_prefetched_pages_that_are_cached_stay_until_their_batch(disk: DiskTier) -> None:
    look_up(disk, 40, 41)
    assert disk.prefetch(np.array([40, 41])).pages == 0
    for first in range(0, 24, 4):
        assert look_up(disk, *range(first, first + 4)) == 4
    assert look_up(disk, 40, 41) == 0


def test_prefetching_takes_at_most_half_the_cache_in_order(disk: DiskTier) -> None:
    assert disk.prefetch(np.arange(10, 13)).pages == 3
    assert disk.prefetch(np.arange(20, 24)).pages == 1
    assert disk.prefetch(np.arange(30, 34)).pages == 0
    assert look_up(disk, 10, 11, 12) == 0
    assert disk.prefetch(np.arange(30, 34)).pages == 3


def test_unused_prefetched_pages_are_unpinned(disk: DiskTier) -> None:
    assert disk.prefetch(np.arange(10, 14)).pages == 4
    for i in range(AHEAD_BATCHES + 1):
        look_up(disk, 20 + i % 4)
    assert disk.prefetch(np.arange(40, 44)).pages == 4
    look_up(disk, *range(40, 44))
    look_up(disk, 40)  # lets go of what was read for the batch before
    assert not disk.staged.pins.any()


def rows_of(numbers: I64) -> Bytes:
    return np.repeat(numbers, 32).view(np.uint8).reshape(numbers.size, -1)


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[DiskTier]:
    """Rows that tell their number; 512 slots for single rows, 32 for pages."""
    slab = Slab(RowFormat(64, "fp32"), 512, 32, 4096)
    rows = 256 * slab.rows_a_page
    write_pages(tmp_path / "rows", slab, [rows_of(np.arange(rows))])
    tier = DiskTier(tmp_path / "rows", slab, rows)
    yield tier
    tier.close()


def numbers(disk: DiskTier, held: PinnedRows) -> I64:
    """Reads the row numbers at the addresses of a batch."""
    return disk._slab.view[held.addresses].contiguous().numpy().view(np.int64)[:, 0]


def test_two_batches_that_wait_for_the_same_rows_keep_them_once(roomy: DiskTier) -> None:
    rows = np.random.default_rng(0).permutation(160)[:100]
    first, second = roomy.acquire(rows), roomy.acquire(rows[::-1].copy())
    for held, wanted in ((first, rows), (second, rows[::-1])):
        roomy.ready(held)
        assert (numbers(roomy, held) == wanted).all()
    for held in (first, second):
        roomy.release(held)
    kept = roomy.row_cache.index.key(np.arange(512))
    assert (np.sort(kept[kept >= 0]) == np.unique(rows)).all()
    again = roomy.acquire(rows)
    assert again.pages_read == 0
    assert (numbers(roomy, again) == rows).all()
    roomy.release(again)


def test_rows_wait_in_their_pages_and_enter_the_row_cache_together(roomy: DiskTier) -> None:
    value = np.arange(roomy.rows)
    pages_read = []
    cached = []
    for rows in ([0, 1], [1, 0], [800], [0, 1, 800]):
        held = roomy.acquire(np.array(rows))
        roomy.ready(held)
        assert (numbers(roomy, held) == value[rows]).all()
        roomy.release(held)
        pages_read.append(held.pages_read)
        cached.append(int((roomy.row_cache.find(np.array([0, 1, 800])) >= 0).sum()))
        # rows that wait are written as well
        value[1] += roomy.rows
        roomy.write(np.array([1]), rows_of(value[[1]]))
    assert pages_read == [1, 0, 1, 0]
    assert cached == [0, 0, 3, 3]
    assert not roomy.staged.pins.any()


def test_hottest_rows_are_kept_if_not_all_fit(roomy: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 50)
    slots = roomy.row_cache.slots
    roomy.keep(np.arange(2 * slots), rows_of)
    held = roomy.acquire(np.arange(slots))
    # a few rows find no entry in the index
    assert held.kept.size > 0.98 * slots
    roomy.ready(held)
    assert (numbers(roomy, held) == np.arange(slots)).all()
    roomy.release(held)
    assert not roomy.row_cache.pins.any()


def test_a_batch_of_more_pages_than_slots_is_served_in_parts(roomy: DiskTier) -> None:
    rows = np.random.default_rng(0).permutation(roomy.rows)[:1500]
    left, passes, read = np.arange(rows.size), 0, 0
    while left.size:
        held = roomy.acquire(rows[left])
        roomy.ready(held)
        served = np.setdiff1d(np.arange(left.size), held.left)
        assert served.size
        assert (numbers(roomy, held)[served] == rows[left][served]).all()
        roomy.release(held)
        left, passes, read = left[held.left], passes + 1, read + held.pages_read
    assert read <= np.unique(rows // 16).size
    assert passes == -(-read // 32)
    roomy.release(roomy.acquire(rows[:0]))  # lets go of what has been read
    assert not roomy.staged.pins.any()
    assert not roomy.row_cache.pins.any()


def test_written_rows_are_read_from_the_cache_the_pages_and_the_file(roomy: DiskTier) -> None:
    random = np.random.default_rng(0)
    wanted = np.arange(roomy.rows)
    for _ in range(5):
        for asked in (random.permutation(roomy.rows)[:300], np.arange(40)):
            look = asked
            while look.size:
                held = roomy.acquire(look)
                roomy.ready(held)
                served = np.setdiff1d(np.arange(look.size), held.left)
                assert (numbers(roomy, held)[served] == wanted[look[served]]).all()
                roomy.release(held)
                look = look[held.left]
        written = random.permutation(roomy.rows)[:700]
        wanted[written] += roomy.rows
        roomy.write(written, rows_of(wanted[written]))
