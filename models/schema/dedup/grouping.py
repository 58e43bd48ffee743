"""Chooses which features to deduplicate together, from the repeats in a sample of real batches.

Deduplicating a group costs one index entry per row and saves its repeated rows. Merging two groups that
change at the same rows saves one index. The choice is based on measured bytes: features that change together
form one group, features that repeat independently form a group each, and features that rarely repeat stay
plain. (RecD, MLSys'23, section 4.2, groups by hand.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.schema.dedup.columns import Columns
from polyrec.models.schema.dedup.distinct import Column, Jagged, distinct, rows_of

INDEX_BYTES = 4
"""Bytes of a row's index into the distinct rows, as stored and sent."""

Names = frozenset[str]


def choose_groups(
    plain_bytes: Mapping[str, int], grouped_bytes: Callable[[Names], int], min_saved: int = 1
) -> tuple[tuple[str, ...], ...]:
    """Returns the groups to deduplicate, ordered by their first feature; features left out stay plain.

    plain_bytes: feature -> bytes without deduplication.
    grouped_bytes: returns the bytes of a deduplicated group, index included. Greedy: repeatedly merges the
    two groups whose union saves most, while that saves at least `min_saved` bytes. A group that saves less
    than that compared with plain features is left out.
    """
    groups: list[Names] = [frozenset((name,)) for name in plain_bytes]
    bytes_ = {group: grouped_bytes(group) for group in groups}

    def cost(group: Names) -> int:
        return min(bytes_[group], sum(plain_bytes[name] for name in group))

    pairs: dict[tuple[Names, Names], int] = {}

    def consider(a: Names, b: Names) -> None:
        bytes_[a | b] = grouped_bytes(a | b)
        pairs[a, b] = cost(a) + cost(b) - cost(a | b)

    for a, b in combinations(groups, 2):
        consider(a, b)
    while pairs:
        a, b = max(pairs, key=lambda pair: pairs[pair])
        if pairs[a, b] < min_saved:
            break
        groups = [g for g in groups if g not in (a, b)]
        pairs = {pair: saved for pair, saved in pairs.items() if not {a, b} & set(pair)}
        for other in groups:
            consider(other, a | b)
        groups.append(a | b)
    paying = [g for g in groups if sum(plain_bytes[name] for name in g) - bytes_[g] >= min_saved]
    order = list(plain_bytes)
    named = [tuple(sorted(g, key=order.index)) for g in paying]
    return tuple(sorted(named, key=lambda g: order.index(g[0])))


class Repeats:
    """Measures how often features repeat, alone and grouped, within each of several batches."""

    def __init__(self, batches: Sequence[Columns]) -> None:
        self.features = tuple(batches[0])
        self.rows = sum(rows_of(batch[self.features[0]]) for batch in batches)
        self._bytes = [{name: _row_bytes(c) for name, c in batch.items()} for batch in batches]
        self._codes: list[dict[Names, tuple[I64, I64]]] = [
            {frozenset((n,)): distinct([c], rows_of(c)) for n, c in batch.items()} for batch in batches
        ]

    def plain_bytes(self) -> dict[str, int]:
        """Returns the bytes of all values, by feature."""
        return {n: sum(int(batch[n].sum()) for batch in self._bytes) for n in self.features}

    def grouped_bytes(self, group: Names) -> int:
        """Returns the bytes of a deduplicated group: its distinct rows, and an index entry per row."""
        kept = INDEX_BYTES * self.rows
        for batch, bytes_ in enumerate(self._bytes):
            first, _ = self._distinct(batch, group)
            kept += sum(int(bytes_[name][first].sum()) for name in group)
        return kept

    def factor(self, group: Names) -> float:
        """Returns rows / distinct rows of the group, the measured value of RecD's dedup factor."""
        return self.rows / sum(self._distinct(batch, group)[0].size for batch in range(len(self._bytes)))

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Returns the groups that `choose_groups` finds best for these batches."""
        return choose_groups(self.plain_bytes(), self.grouped_bytes)

    def _distinct(self, batch: int, group: Names) -> tuple[I64, I64]:
        codes = self._codes[batch]
        if group not in codes:
            # rows of a union are pairs of distinct rows of its parts, so values need not be compared again
            head = max((known for known in codes if known < group), key=len)
            parts: list[Column] = [self._distinct(batch, part)[1] for part in (head, group - head)]
            codes[group] = distinct(parts, rows_of(parts[0]))
        return codes[group]


def _row_bytes(column: Column) -> I64:
    """Returns the bytes of each row's values, int64 [rows]; a list also stores its length."""
    if isinstance(column, Jagged):
        return column.lengths * column.values.itemsize + INDEX_BYTES
    return np.full(column.shape[0], column.nbytes // max(column.shape[0], 1), np.int64)
