"""Orders all lookups of a batch as one list of bags, in the slot order of the interaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrec.models.embeddings.lookups import BlockLookups, Lookups
from polyrec.models.schema.batch import F32, I64


@dataclass(frozen=True, slots=True)
class LookupBags:
    """All lookups of a batch as bags, contexts first, each block row by row.

    rows: int64 [lookups]. offsets: int64 [bags + 1], None if every bag is a single value.
    scale: float32 [bags], None if no bag is averaged. shapes: (rows, slots) of contexts and candidates.
    """

    rows: I64
    offsets: I64 | None
    scale: F32 | None
    shapes: tuple[tuple[int, int], tuple[int, int]]

    @property
    def bags(self) -> int:
        return sum(rows * slots for rows, slots in self.shapes)

    def having(self, lookups: I64) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns bool [bags], True for bags that contain any of these lookups."""
        has = np.zeros(self.rows.size, bool)
        has[lookups] = True
        if self.offsets is None:
            return has
        before = np.concatenate(([0], np.cumsum(has)))
        return np.diff(before[self.offsets]) > 0


def bags_in_slot_order(lookups: Lookups) -> LookupBags:
    """Orders lookups as the interaction reads their vectors."""
    blocks = (lookups.context, lookups.candidate)
    shapes = [(b.singles.shape[0], b.singles.shape[1] + (b.bags.features if b.bags else 0)) for b in blocks]
    both = (shapes[0], shapes[1])
    if all(b.bags is None for b in blocks):
        return LookupBags(lookups.singles, None, None, both)
    parts = [_in_slots(b) for b in blocks]
    lengths = np.concatenate([p[1] for p in parts])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    scale = None
    if any(b.bags is not None and b.bags.scale is not None for b in blocks):
        scale = np.concatenate(
            [_scale(b, slots).ravel() for b, (_, slots) in zip(blocks, shapes, strict=True)]
        )
    return LookupBags(np.concatenate([p[0] for p in parts]), offsets, scale, both)


def _in_slots(block: BlockLookups) -> tuple[I64, I64]:
    """Returns (rows, length of each bag), row by row, single values before bags."""
    rows, singles = block.singles.shape
    bags = block.bags
    if bags is None:
        return block.singles.ravel(), np.ones(block.singles.size, np.int64)
    lengths = np.ones((rows, singles + bags.features), np.int64)
    lengths[:, singles:] = np.diff(bags.offsets).reshape(rows, bags.features)
    single = np.zeros(lengths.shape, bool)
    single[:, :singles] = True
    of_single = np.repeat(single.ravel(), lengths.ravel())
    out = np.empty(of_single.size, np.int64)
    out[of_single], out[~of_single] = block.singles.ravel(), bags.rows
    return out, lengths.ravel()


def _scale(block: BlockLookups, slots: int) -> F32:
    out = np.ones((block.singles.shape[0], slots), np.float32)
    if block.bags is not None and block.bags.scale is not None:
        out[:, block.singles.shape[1] :] = block.bags.scale
    return out
