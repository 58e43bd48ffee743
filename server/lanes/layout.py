"""Computes where a batch's arrays lie in a mailbox, from the batch's header.

The int64 arrays, the float32 arrays and the space for the answer follow each other without gaps. Within each
type, the context's arrays come before the candidate's. If the batch's rows are in tiers, the rows that the
server resolved (polyrec.models.tiers.shared.resolved) are included: addresses after the int64 arrays, values
after the float32 arrays, padded to a whole float32. Batches of equal sizes have equal headers and therefore
equal views, which a worker creates once and caches by header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import F32, I64, Batch, Block
from polyrec.models.tiers.shared.resolved import ResolvedRows

T = TypeVar("T", np.int64, np.float32)

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
    resolved: the batch's rows resolved in the tiers, None if they are not in tiers.
    """

    path: int
    batch: Batch
    answer: F32
    resolved: ResolvedRows | None

    @classmethod
    def from_header(cls, head: bytes, ints: I64, floats: F32) -> Self:
        """Creates the views that a header describes. ints, floats: the data area as either type.

        Raises ValueError if the sizes do not add up to the offset of the answer.
        """
        _, answer_at, path, rows, contexts, is_shared, plain, *sizes = HEAD.unpack(head)
        *columns, addresses, value_rows, row_bytes = sizes
        context_singles, singles, context_values, values, context_offsets, offsets, context_dense, dense = (
            columns
        )
        int_sizes = [
            contexts * context_singles, rows * singles, context_values, values, context_offsets, offsets,
            rows if is_shared else 0, max(addresses, 0), value_rows,
        ]  # fmt: skip
        float_sizes = [contexts * context_dense, rows * dense]
        first_float = 2 * sum(int_sizes)  # an int64 is as long as two float32
        end = first_float + sum(float_sizes)
        value_bytes = value_rows * row_bytes
        if end + (value_bytes + 3) // 4 != answer_at:
            raise ValueError(
                f"the batch's arrays end at {end} and {value_bytes} bytes, its answer begins at {answer_at}"
            )
        int_arrays = _split(ints, int_sizes)
        context_ranks, ranks, context_bags, bags, context_bounds, bounds, context_row, address, at = (
            int_arrays
        )
        context_numbers, numbers = _split(floats[first_float:end], float_sizes)
        context = Block(
            context_numbers.reshape(contexts, context_dense),
            context_ranks.reshape(contexts, context_singles),
            context_bags,
            context_bounds,
        )
        candidate = Block(numbers.reshape(rows, dense), ranks.reshape(rows, singles), bags, bounds)
        batch = Batch(context, candidate, context_row if is_shared else None, plain)
        resolved = None
        if addresses >= 0:
            found_values = floats[end:answer_at].view(np.uint8)[:value_bytes].reshape(value_rows, row_bytes)
            resolved = ResolvedRows(address, at, found_values)
        return cls(path, batch, floats[answer_at : answer_at + rows], resolved)


def _split(array: NDArray[T], sizes: Sequence[int]) -> list[NDArray[T]]:
    """Returns consecutive views of an array, of the given sizes."""
    return [array[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
