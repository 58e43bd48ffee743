"""Continues vocabularies with new data: known values keep their ids, new values enter, old ones may leave.

A value keeps its id as long as it is known. New values get reserved ids first, then the ids of forgotten
values, then ids after the last one (the rows for missing and unknown values stay the last two). Ranks follow
the accesses: half of the previous counts plus those of the new data, so that values no longer looked up sink.
The two vocabularies alone determine which rows a new table takes from the old one and which it initializes
(`old_ranks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polyrec.models.schema.batch import I64
from polyrec.models.schema.vocabulary import Vocabulary

NEW = -1
"""Instead of an old rank: the row is initialized."""


@dataclass(frozen=True, slots=True)
class PreviousVocabularies:
    """The vocabularies to continue.

    forget: maximum previous count of values that may give their rows to new values, if the new data do not
    contain them; None: no value is forgotten.
    stored: table -> number of stored rows, for tables stored in part. Ranks below it stay below it.
    """

    vocabularies: Mapping[str, Vocabulary]
    forget: int | None = None
    stored: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CountedTable:
    """Accesses of one table, counted in new data.

    values: distinct, as pyarrow array [n].
    sampled: int64 [n], accesses that determine the order.
    last: int64 [n], row of the last access.
    entering: int64 [m], positions of the values that may get a row, most frequent first.
    missing: sampled accesses without a value.
    whole: whether every row was sampled.
    """

    values: pa.Array
    sampled: I64
    last: I64
    entering: I64
    missing: int
    whole: bool


def continued(
    table: str, previous: PreviousVocabularies, found: CountedTable, max_values: int | None = None
) -> Vocabulary:
    """Returns the vocabulary of a table after new data.

    max_values: maximum number of values; known values are kept even beyond it.
    """
    old = previous.vocabularies[table]
    ids = _known_ids(old, found.values)
    known = ids >= 0
    new = found.entering[~known[found.entering]] if old.values is not None and old.specials else ids[:0]
    before = old.counts[old.rank_of_id]
    seen = np.zeros(old.rows, bool)
    seen[ids[known]] = True
    free = _free(old, before, seen, previous.forget)
    if max_values is not None:
        new = new[: free.size + max(0, max_values - old.size)]
    free = free[: new.size]
    values, size = old.values, old.size + new.size - free.size
    if old.values is not None and new.size:
        place = np.concatenate((np.arange(old.size), np.arange(old.size + free.size, old.size + new.size)))
        place[free] = old.size + np.arange(free.size)
        every = pa.concat_arrays([old.values, found.values.take(pa.array(new)).cast(old.values.type)])
        values = every.take(pa.array(place))
    rows = size + old.rows - old.size
    new_ids = np.concatenate((free, np.arange(old.size, size)))
    # the rows for missing and unknown values, if any, come after all values
    moved = np.concatenate((np.arange(old.size), np.arange(size, rows)))
    counts, last, rank = np.zeros(rows, np.int64), np.full(rows, -1), np.full(rows, old.rows)
    counts[moved], rank[moved] = before // 2, old.rank_of_id
    first_rank = rank.copy()
    counts[new_ids], rank[new_ids] = 0, old.rows
    where = np.concatenate((ids[known], new_ids))
    which = np.concatenate((np.flatnonzero(known), new))
    np.add.at(counts, where, found.sampled[which])
    last[where] = found.last[which]
    if old.specials:
        once = int((found.sampled[new] == 1).sum()) if found.whole else 0
        counts[size] += found.missing
        counts[size + 1] += int(found.sampled.sum() - found.sampled[which].sum()) + once
    stored = previous.stored.get(table, 0)
    order = np.lexsort((rank, -last, -counts, first_rank >= stored))
    rank_of_id = np.empty_like(order)
    rank_of_id[order] = np.arange(rows)
    # counts must not increase: cap each row's count at that of the row ahead of it
    return replace(
        old, size=size, values=values, rank_of_id=rank_of_id, counts=np.minimum.accumulate(counts[order])
    )


def old_ranks(old: Vocabulary, new: Vocabulary) -> I64:
    """Returns, for each rank of the continued vocabulary, its rank in `old` or NEW for a new value.

    int64 [rows].
    """
    kept = np.arange(old.size)
    if old.values is not None and new.values is not None:
        # a reserved id without a value keeps its row
        same = pc.equal(old.values, new.values.slice(0, old.size))
        same = pc.if_else(pc.is_null(old.values), new.values.slice(0, old.size).is_null(), same)
        same = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        kept = np.flatnonzero(same)
    found = np.full(new.rows, NEW)
    found[new.rank_of_id[kept]] = old.rank_of_id[kept]
    found[new.rank_of_id[new.size :]] = old.rank_of_id[old.size :]
    return found


def _known_ids(old: Vocabulary, values: pa.Array) -> I64:
    """Returns the id of each value, NEW for an unknown one."""
    if old.values is not None:
        found = pc.index_in(values.cast(old.values.type), value_set=old.values)
        return np.asarray(pc.fill_null(found, NEW).to_numpy(zero_copy_only=False), np.int64)
    ids = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.where((ids >= 0) & (ids < old.size), ids, NEW)


def _free(old: Vocabulary, before: I64, seen: np.ndarray, forget: int | None) -> I64:
    """Returns the ids that new values may take: reserved ids first, then ids of values that may be forgotten.

    The latter are ordered by count, smallest first, ties by rank, lowest-ranked first.
    """
    reserved = old.reserved()
    if forget is None or old.values is None:
        return reserved
    leaving = ~seen[: old.size] & (before[: old.size] <= forget)
    leaving[reserved] = False
    free = np.flatnonzero(leaving)
    return np.concatenate((reserved, free[np.lexsort((-old.rank_of_id[free], before[free]))]))
