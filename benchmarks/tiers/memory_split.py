"""Splits a memory budget: bytes in, the cuts of every table and the size of the cache out.

Most of the host's budget goes to the hottest rows by calibration; a tenth goes to the cache above the file,
which adapts to current traffic. The index of the cache is paid from the same budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyrec.models.embeddings.cuts import tiers_within
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.tiers.disk.page_cache import DEFAULT, PAGE_INDEX_BYTES, SLOT_INDEX_BYTES
from polyrec.models.tiers.disk.row_cache import ROW_INDEX_BYTES
from polyrec.models.tiers.tier_settings import CACHE_SHARE, PAGE_BYTES, TierCuts


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """cuts: rows of each table in each tier. cache_bytes: as TierSettings has
    it. index_bytes: index of the cache; rows, cache and index together are at most the host's budget."""

    cuts: dict[str, TierCuts]
    cache_bytes: int
    index_bytes: int


def split_memory(
    vocabularies: Mapping[str, Vocabulary],
    row_bytes: int,
    host_bytes: int,
    device_bytes: int = 0,
    cached: float = CACHE_SHARE,
) -> MemorySplit:
    """Splits `host_bytes` (and `device_bytes`) among rows, cache and index; the other rows are in the file.

    row_bytes: of a stored row. cached: share of `host_bytes` that is the cache; one page at least.
    """
    total = sum(v.rows for v in vocabularies.values())
    whole = {"device": device_bytes, "host": host_bytes, "disk": 0}
    if device_bytes // row_bytes + host_bytes // row_bytes >= total:
        return MemorySplit(_cuts(vocabularies, row_bytes, whole), PAGE_BYTES, 0)
    page_bytes = -(-row_bytes // PAGE_BYTES) * PAGE_BYTES
    a_page = page_bytes // row_bytes
    slots = max(int(host_bytes * cached) // page_bytes, 1)
    row_slots = DEFAULT.row_slots(slots)
    # the file has whole tables
    index_bytes = (
        -(-total // a_page) * PAGE_INDEX_BYTES
        + (slots - row_slots) * SLOT_INDEX_BYTES
        + row_slots * a_page * ROW_INDEX_BYTES
    )
    rows = max(host_bytes - slots * page_bytes - index_bytes, 0)
    return MemorySplit(
        _cuts(vocabularies, row_bytes, whole | {"host": rows}), slots * page_bytes, index_bytes
    )


def _cuts(
    vocabularies: Mapping[str, Vocabulary], row_bytes: int, budgets: Mapping[str, int]
) -> dict[str, TierCuts]:
    found = tiers_within(vocabularies, row_bytes, budgets)
    return {table: TierCuts(**rows) for table, rows in found.items()}
