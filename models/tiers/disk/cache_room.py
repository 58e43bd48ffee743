"""Divides the bytes of a disk tier's cache: slots of single rows, slots of pages, and their index."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from polyrec.models.tiers.disk.row_cache import SLOT_BYTES, UNUSED_SLOT_BYTES
from polyrec.models.tiers.disk.staging import PAGE_SLOT_BYTES

PAGE_SHARE = 0.25
"""Share of the cache for pages that are being read, up to `MOST_PAGES`."""
MOST_PAGES = 4096
JOINING_SHARE = 0.25
"""Share of the rest for the index of rows that may join the cache."""
ROUNDING_BYTES = 512
"""Bytes that hash tables are longer, since they consist of whole buckets."""


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """How the memory of a disk tier is divided.

    slots: of single rows. pages: slots of pages of `page_bytes`. joining: rows of host memory that may
    become slots.
    """

    slots: int
    pages: int
    page_bytes: int
    joining: int


def multiple(number: int, of: int) -> int:
    """Returns the smallest multiple of `of` that is not below `number`."""
    return -(-number // of) * of


def divide(
    cache_bytes: int, row_bytes: int, page_bytes: int, file_rows: int, host_rows: int, joining: int
) -> CacheRoom:
    """Divides `cache_bytes`; together with the rows of host memory it is what the tiers take of it.

    file_rows: of the disk tier's file. host_rows: of host memory; joining: of those, rows that may join the
    cache; none if their index would take too much. A cache has one page slot at least, even if that is more
    than its bytes.
    """
    a_page = page_bytes + PAGE_SLOT_BYTES
    file_pages = -(-file_rows // (page_bytes // row_bytes))
    pages = max(min(int(cache_bytes * PAGE_SHARE / a_page), MOST_PAGES, file_pages), 1)
    # memory is mapped in whole pages, and has one row more
    rounding = mmap.PAGESIZE + page_bytes + row_bytes + ROUNDING_BYTES
    left: float = max(cache_bytes - pages * a_page - rounding, 0)
    joining = min(joining, int(left * JOINING_SHARE / SLOT_BYTES))
    if joining:
        left -= joining * SLOT_BYTES + (host_rows - joining) * UNUSED_SLOT_BYTES
        if left < 0:
            return divide(cache_bytes, row_bytes, page_bytes, file_rows, host_rows, 0)
    slots = min(int(left / (row_bytes + SLOT_BYTES)), file_rows)
    return CacheRoom(slots, pages, page_bytes, joining)
