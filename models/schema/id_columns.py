"""Converts stable ids or raw integers of many features to ranks, with one gather for all tables."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import Categorical
from polyrec.models.schema.vocabulary import Vocabulary

Order = slice | I64
"""Columns of a matrix: a slice, which costs no copy, where they are adjacent and in order."""


FROM_FEATURES = 4
"""Fewer features are encoded one by one, each by its dictionary.

At once against one by one, in us: 3 features 6.0 and 4.7 for one row, 9.1 and 7.7 for 23, 26 and 41 for 270;
4 features 6.2 and 6.1, 9.9 and 10.2, 33 and 56 (tables of 10,000 values, a busy AMD EPYC, 2026-11-23).
"""


class RankTable:
    """The ranks of all ids of all tables, concatenated by table.

    flat: int64 [rows of all tables]; None if every id is its own rank (tables imported in their original
    order).
    base: table -> position of its first id.
    """

    def __init__(self, vocabularies: Mapping[str, Vocabulary]) -> None:
        self.vocabularies = vocabularies
        self.base: dict[str, int] = {}
        rows = 0
        for table, vocabulary in vocabularies.items():
            self.base[table] = rows
            rows += vocabulary.rows
        parts = [v.rank_of_id for v in vocabularies.values()]
        identity = all(np.array_equal(part, np.arange(part.size)) for part in parts)
        self.flat: I64 | None = None if identity else np.concatenate(parts)


class IdColumns:
    """Converts ids of single-valued features, one per column, to ranks."""

    def __init__(self, features: Sequence[Categorical], ranks: RankTable) -> None:
        self._features = tuple(features)
        self._vocabularies = [ranks.vocabularies[f.table_name] for f in features]
        self._rows = np.array([v.rows for v in self._vocabularies], np.uint64)
        self._base = np.array([ranks.base[f.table_name] for f in features], np.int64)
        self._flat = ranks.flat

    def __call__(self, ids: I64) -> I64:
        """Returns the rank of each id, int64 [rows, features]. Raises FeatureError for an id out of range."""
        # One comparison for all features: viewed as unsigned, a negative id is huge.
        if np.count_nonzero(ids.view(np.uint64) >= self._rows):
            for i, (f, vocabulary) in enumerate(zip(self._features, self._vocabularies, strict=True)):
                vocabulary.ranks_of_ids(f.name, np.ascontiguousarray(ids[:, i]))
        return ids if self._flat is None else self._flat.take(ids + self._base)


class RangeColumns:
    """Converts raw integers of single-valued features to ranks, all features at once.

    Applies to vocabularies whose values are the integers 0 ... size-1 and that have a row for unknown values.
    Tests compare it with `Vocabulary.encode`, which works feature by feature.
    places: positions of these features among `features`; empty if they are too few to pay off.
    others: positions of the other features.
    """

    def __init__(self, features: Sequence[Categorical], ranks: RankTable) -> None:
        found = [
            (i, f, v)
            for i, f in enumerate(features)
            if (v := ranks.vocabularies[f.table_name]).values is None and v.specials and v.oov == "row"
        ]
        if len(found) < FROM_FEATURES:
            found = []
        self.places = [i for i, _, _ in found]
        self.others = [i for i in range(len(features)) if i not in self.places]
        self._names = [f.name for _, f, _ in found]
        self._sizes = np.array([[v.size] for _, _, v in found], np.uint64)
        self._unknown = np.array([[v.oov_id] for _, _, v in found], np.int64)
        self._missing = [v.missing_rank for _, _, v in found]
        self._base = np.array([[ranks.base[f.table_name]] for _, f, _ in found], np.int64)
        self._flat = ranks.flat

    def __call__(self, columns: Mapping[str, Sequence[Any] | None], rows: int) -> I64 | None:
        """Returns the rank of each value, int64 [features, rows].

        columns: feature name -> `rows` values; None or left out if every value is missing. Returns None if a
        single value is missing or not a 64-bit integer; `Vocabulary.encode` must then handle the columns.
        """
        given = [columns.get(name) for name in self._names]
        # an all-missing column may hold any number: its ranks are replaced below
        filled = [repeat(0, rows) if column is None else column for column in given]
        try:
            # array is strict, whereas numpy would truncate 1.5 to 1
            flat = array("q", list(chain.from_iterable(filled)))
        except (TypeError, OverflowError):
            return None
        ids = np.frombuffer(flat, np.int64).reshape(len(given), rows)
        # viewed as unsigned, a negative integer is huge
        ids = np.where(ids.view(np.uint64) < self._sizes, ids, self._unknown)
        ranks = ids if self._flat is None else self._flat.take(ids + self._base)
        for i, column in enumerate(given):
            if column is None:
                ranks[i] = self._missing[i]
        return ranks


def column_order(given: Sequence[str], wanted: Sequence[str]) -> Order:
    """Returns the positions of the `wanted` names among the `given` ones, as a slice if they are
    contiguous.
    """
    columns = [given.index(name) for name in wanted]
    first = columns[0] if columns else 0
    if columns == list(range(first, first + len(columns))):
        return slice(first, first + len(columns))
    return np.array(columns, np.int64)
