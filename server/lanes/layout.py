"""The layout of a batch's arrays in a mailbox, derived from its head.

The int64 arrays, the float32 arrays and room for the answer follow each other without gaps; of each type, the
context's arrays come before the candidate's. Batches of the same sizes have the same head and the same views,
which a worker makes once for each head.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Self

from polyrec.models.schema.batch import F32, I64, Batch, Block

# size of the data area, offset of the answer in it (in float32), path, rows, contexts, whether rows share
# contexts, plain rows; then, context before candidate: columns of ranks, values and offsets of bags, columns
# of dense
HEAD = Struct("=15q")


@dataclass(frozen=True, slots=True)
class Layout:
    """Index of the path, the batch, and float32 [rows] for the answer; all arrays are views."""

    path: int
    batch: Batch
    answer: F32

    @classmethod
    def of(cls, head: bytes, ints: I64, floats: F32) -> Self:
        """Makes the views that a head describes. ints, floats: the data area as either type.

        Raises ValueError if the sizes do not add up to the offset of the answer.
        """
        _, at, path, rows, contexts, shared, plain, *columns = HEAD.unpack(head)
        singles, own_singles, values, own_values, offsets, own_offsets, dense, own_dense = columns
        a = contexts * singles
        b = a + rows * own_singles
        c = b + values
        d = c + own_values
        e = d + offsets
        f = e + own_offsets
        end = f + rows if shared else f
        first = 2 * end
        middle = first + contexts * dense
        last = middle + rows * own_dense
        if last != at:
            raise ValueError(f"the batch's arrays end at {last}, its answer begins at {at}")
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
        return cls(path, batch, floats[last : last + rows])
