"""Divides the bytes of a disk tier's cache into slots of single rows, slots of pages, and their index."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from polyrec.models.tiers.disk.row_cache import SLOT_BYTES, UNUSED_SLOT_BYTES
from polyrec.models.tiers.disk.staging import PAGE_SLOT_BYTES

PAGE_SHARE = 0.25
"""Share of the cache for pages that are being read, up to `MAX_PAGES`."""
MAX_PAGES = 4096
JOINING_SHARE = 0.25
"""Share of the rest for the index of rows that may join the cache."""
ROUNDING_BYTES = 512
"""Bytes that hash tables are longer, since they consist of whole buckets."""


@dataclass(frozen=True, slots=True)
class CacheDivision:
    """How the memory of a disk tier is divided.

    slots: number of slots for single rows. pages: number of slots for pages of `page_bytes`.
    joining: number of rows of host memory that may become slots.
    """

    slots: int
    pages: int
    page_bytes: int
    joining: int


def multiple(number: int, of: int) -> int:
    """Rounds `number` up to a multiple of `of`."""
    return -(-number // of) * of


def divide_cache(
    cache_bytes: int, row_bytes: int, page_bytes: int, file_rows: int, host_rows: int, joining: int
) -> CacheDivision:
    """Divides `cache_bytes`; these and the rows of host memory are all the memory that the tiers use.

    file_rows: rows in the disk tier's file. host_rows: rows of host memory. joining: those of them that may
    join the cache; set to 0 if their index would be too large. A cache has at least one page slot, even if
    that exceeds `cache_bytes`.
    """
    a_page = page_bytes + PAGE_SLOT_BYTES
    file_pages = -(-file_rows // (page_bytes // row_bytes))
    pages = max(min(int(cache_bytes * PAGE_SHARE / a_page), MAX_PAGES, file_pages), 1)
    # memory is mapped in whole pages and has one extra row
    rounding = mmap.PAGESIZE + page_bytes + row_bytes + ROUNDING_BYTES
    left: float = max(cache_bytes - pages * a_page - rounding, 0)
    joining = min(joining, int(left * JOINING_SHARE / SLOT_BYTES))
    if joining:
        left -= joining * SLOT_BYTES + (host_rows - joining) * UNUSED_SLOT_BYTES
        if left < 0:
            return divide_cache(cache_bytes, row_bytes, page_bytes, file_rows, host_rows, 0)
    slots = min(int(left / (row_bytes + SLOT_BYTES)), file_rows)
    return CacheDivision(slots, pages, page_bytes, joining)
