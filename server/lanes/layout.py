"""Computes where a batch's arrays lie in a mailbox, from the batch's header.

The int64 arrays, the float32 arrays and the space for the answer follow each other without gaps. Within each
type, the context's arrays come before the candidate's. If the batch's rows are in tiers, the rows that the
server resolved (polyrec.models.tiers.shared.resolved) are included: addresses after the int64 arrays, values
after the float32 arrays, padded to a whole float32. Batches of equal sizes have equal headers and therefore
equal views, which a worker creates once and caches by header.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Self

import numpy as np

from polyrec.models.schema.batch import F32, I64, Batch, Block
from polyrec.models.tiers.shared.resolved import ResolvedRows

# 0-6    size of the data area, offset of the answer in it (in float32), path, rows, contexts, whether rows
#        share contexts, plain rows
# 7-14   each for context and candidate: columns of ranks, bag values, bag offsets, dense columns
# 15-17  addresses of rows in tiers (-1 if rows are not in tiers), number of values, bytes per value
HEAD = Struct("=18q")
NO_TIERS = (-1, 0, 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """Views of one batch in the mailbox.

    path: index of the path.
    answer: float32 [rows], to be filled with the probabilities.
    found: the batch's rows resolved in the tiers, None if they are not in tiers.
    """

    path: int
    batch: Batch
    answer: F32
    found: ResolvedRows | None

    @classmethod
    def from_header(cls, head: bytes, ints: I64, floats: F32) -> Self:
        """Creates the views that a header describes. ints, floats: the data area as either type.

        Raises ValueError if the sizes do not add up to the offset of the answer.
        """
        _, at, path, rows, contexts, shared, plain, *columns = HEAD.unpack(head)
        singles, own_singles, values, own_values, offsets, own_offsets, dense, own_dense, *tiers = columns
        addresses, others, row_bytes = tiers
        a = contexts * singles
        b = a + rows * own_singles
        c = b + values
        d = c + own_values
        e = d + offsets
        f = e + own_offsets
        end = f + rows if shared else f
        g = end + max(addresses, 0)
        h = g + others
        first = 2 * h
        middle = first + contexts * dense
        last = middle + rows * own_dense
        valued = others * row_bytes
        if last + (valued + 3) // 4 != at:
            raise ValueError(
                f"the batch's arrays end at {last} and {valued} bytes, its answer begins at {at}"
            )
        context = Block(
            floats[first:middle].reshape(contexts, dense),
            ints[:a].reshape(contexts, singles),
            ints[b:c],
            ints[d:e],
        )
        candidate = Block(
            floats[middle:last].reshape(rows, own_dense),
            ints[a:b].reshape(rows, own_singles),
            ints[c:d],
            ints[e:f],
        )
        batch = Batch(context, candidate, ints[f:end] if shared else None, plain)
        found = None
        if addresses >= 0:
            found_values = floats[last:at].view(np.uint8)[:valued].reshape(others, row_bytes)
            found = ResolvedRows(ints[end:g], ints[g:h], found_values)
        return cls(path, batch, floats[at : at + rows], found)
