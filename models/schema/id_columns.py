"""Converts stable ids, or raw integers, of many features to ranks by one gather, whatever their tables."""

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
    """The ranks of all ids of all tables, one table after another.

    flat: int64 [rows of all tables], None where every id is its own rank (tables imported in their order).
    base: the first position of each table.
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
    """Ids of single-valued features, a column each -> their ranks."""

    def __init__(self, features: Sequence[Categorical], ranks: RankTable) -> None:
        self._features = tuple(features)
        self._vocabularies = [ranks.vocabularies[f.table_name] for f in features]
        self._rows = np.array([v.rows for v in self._vocabularies], np.uint64)
        self._base = np.array([ranks.base[f.table_name] for f in features], np.int64)
        self._flat = ranks.flat

    def __call__(self, ids: I64) -> I64:
        """Returns the rank of each id, int64 [rows, features]. Raises FeatureError for one out of range."""
        # One comparison for all features: seen as unsigned, a negative id is a huge one.
        if np.count_nonzero(ids.view(np.uint64) >= self._rows):
            for i, (f, vocabulary) in enumerate(zip(self._features, self._vocabularies, strict=True)):
                vocabulary.ranks_of_ids(f.name, np.ascontiguousarray(ids[:, i]))
        return ids if self._flat is None else self._flat.take(ids + self._base)


class RangeColumns:
    """Raw integers of single-valued features -> their ranks, all features at once.

    For vocabularies whose values are the integers 0 ... size-1 and that have a row for what is unknown;
    `Vocabulary.encode` is the reference, feature by feature.

    places: of these features among `features`, none if they are few. others: of the rest.
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

        columns: by feature name, `rows` values each; None or left out where every value is missing.
        None: a single value is missing, or not an integer of 64 bits, so that the reference has to tell.
        """
        given = [columns.get(name) for name in self._names]
        # where all values are missing, any number: the rank is replaced below
        filled = [repeat(0, rows) if column is None else column for column in given]
        try:
            # strict, unlike numpy, which would cut 1.5 to 1
            flat = array("q", list(chain.from_iterable(filled)))
        except (TypeError, OverflowError):
            return None
        ids = np.frombuffer(flat, np.int64).reshape(len(given), rows)
        # seen as unsigned, a negative integer is a huge one
        ids = np.where(ids.view(np.uint64) < self._sizes, ids, self._unknown)
        ranks = ids if self._flat is None else self._flat.take(ids + self._base)
        for i, column in enumerate(given):
            if column is None:
                ranks[i] = self._missing[i]
        return ranks


def column_order(given: Sequence[str], wanted: Sequence[str]) -> Order:
    """Returns the columns of `wanted` names among the `given` ones."""
    columns = [given.index(name) for name in wanted]
    first = columns[0] if columns else 0
    if columns == list(range(first, first + len(columns))):
        return slice(first, first + len(columns))
    return np.array(columns, np.int64)
