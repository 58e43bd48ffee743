"""Splits a memory budget: bytes in, the cuts of every table and the size of the cache out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyrec.models.embeddings.cuts import tiers_within
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.tiers.tier_settings import CACHED, PAGE_BYTES, TierCuts


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """cuts: rows of each table in each tier. cache_bytes: as TierSettings has it."""

    cuts: dict[str, TierCuts]
    cache_bytes: int


def split_memory(
    vocabularies: Mapping[str, Vocabulary],
    row_bytes: int,
    host_bytes: int,
    device_bytes: int = 0,
    cached: float = CACHED,
) -> MemorySplit:
    """Splits `host_bytes` (and `device_bytes`) among rows and cache; the other rows are in the file.

    row_bytes: of a stored row. cached: share of `host_bytes` that is the cache with its index.
    """
    total = sum(v.rows for v in vocabularies.values())
    budgets = {"device": device_bytes, "host": host_bytes, "disk": 0}
    cache_bytes = PAGE_BYTES
    if device_bytes // row_bytes + host_bytes // row_bytes < total:
        cache_bytes = max(int(host_bytes * cached), PAGE_BYTES)
        budgets["host"] = max(host_bytes - cache_bytes, 0)
    found = tiers_within(vocabularies, row_bytes, budgets)
    return MemorySplit({table: TierCuts(**rows) for table, rows in found.items()}, cache_bytes)
