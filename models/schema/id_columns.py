"""Converts stable ids of many features to ranks by one gather, whatever the number of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import Categorical
from polyrec.models.schema.vocabulary import Vocabulary

Order = slice | I64
"""Columns of a matrix: a slice, which costs no copy, where they are adjacent and in order."""


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


def column_order(given: Sequence[str], wanted: Sequence[str]) -> Order:
    """Returns the columns of `wanted` names among the `given` ones."""
    columns = [given.index(name) for name in wanted]
    first = columns[0] if columns else 0
    if columns == list(range(first, first + len(columns))):
        return slice(first, first + len(columns))
    return np.array(columns, np.int64)
