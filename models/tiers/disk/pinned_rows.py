"""Defines the look-ups of a batch in the disk tier, pinned while they are gathered."""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.models.schema.batch import I64


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """Look-ups served by one pass: their addresses in the slab, pinned until `release`, and their reads.

    addresses: int64 [n], addresses of the served look-ups; arbitrary for the others.
    left: look-ups that found no free slot, to be acquired after `release`.
    kept: slots in the row cache, may repeat. slots: distinct page slots, for the other rows.
    missed: look-ups that waited for a read: the first look-up of each row that was not in memory.
    paged: (row, slot of its page, position in the page) of each served look-up that is not in the row cache.
    """

    addresses: I64
    left: I64
    slots: I64
    kept: I64
    tickets: tuple[int, ...]
    missed: I64
    pages_read: int
    paged: tuple[I64, I64, I64]
