"""Look-ups of a batch in the disk tier, pinned while they are gathered."""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.models.schema.batch import I64


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """Look-ups served by one pass: their addresses in the slab, pinned until `release`, and their reads.

    addresses: int64 [n], of the look-ups that are served; of the others any address. left: look-ups that
    found no room, to be acquired after `release`.
    kept: slots in the row cache, which may repeat. slots: distinct slots of pages, for the other rows.
    missed: look-ups that waited for a read: the first of each row that was not in memory.
    paged: (row, slot of its page, place in the page) of each served look-up of the other rows.
    """

    addresses: I64
    left: I64
    slots: I64
    kept: I64
    tickets: tuple[int, ...]
    missed: I64
    pages_read: int
    paged: tuple[I64, I64, I64]
