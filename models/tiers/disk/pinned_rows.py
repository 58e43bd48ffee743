"""Defines the lookups of a batch in the disk tier, pinned while they are gathered."""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.models.schema.batch import I64


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """Lookups served by one pass: their addresses in the slab, pinned until `release`, and their reads.

    addresses: int64 [n], addresses of the served lookups; arbitrary for the others.
    left: lookups that found no free slot, to be acquired after `release`.
    kept: slots in the row cache, may repeat. slots: distinct page slots, for the other rows.
    missed: lookups that waited for a read: the first lookup of each row that was not in memory.
    paged: (row, slot of its page, position in the page) of each served lookup that is not in the row cache.
    """

    addresses: I64
    left: I64
    slots: I64
    kept: I64
    tickets: tuple[int, ...]
    missed: I64
    pages_read: int
    paged: tuple[I64, I64, I64]
