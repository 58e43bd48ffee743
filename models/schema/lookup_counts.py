"""Counts lookups of every row of an existing model, by stable id.

Unlike models/schema/popularity.py, which counts values to build a vocabulary, this uses the model's
vocabularies.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from polyrec.models.schema.batch import I64, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES, Categorical, Role


class LookupCounts:
    """Lookups of the rows of all tables. unknown: values that no row serves; they are not counted."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._by_rank = {t: np.zeros(v.rows, np.int64) for t, v in encoder.vocabularies.items()}
        self._rows = dict.fromkeys((f.name for f in encoder.schema.categorical), 0)
        self.unknown = 0

    def add_block(self, role: Role, block: Block) -> None:
        """Counts the lookups of an encoded block; a shared context counts once."""
        layout = self._encoder.schema.layout(role)
        for feature in layout.categorical:
            self._rows[feature.name] += block.rows
        for i, feature in enumerate(layout.singles):
            self._add(feature, block.ranks[:, i])
        bags = len(layout.bags)
        if not bags:
            return
        lengths = np.diff(block.bag_offsets)
        feature_of = np.repeat(np.arange(lengths.size) % bags, lengths)
        for i, feature in enumerate(layout.bags):
            self._add(feature, block.bag_values[feature_of == i])

    def add_values(self, feature: Categorical, values: pa.Array, rows: int) -> None:
        """Counts raw values of `rows` rows, with lists flattened; a null is a missing value."""
        self._rows[feature.name] += rows
        ranks = self._encoder.vocabulary(feature).encode_arrow(values)
        known = ranks >= 0
        self.unknown += int(known.size - np.count_nonzero(known))
        self._add(feature, ranks[known])

    def add_ids(self, feature: Categorical, ids: I64, rows: int) -> None:
        """Counts stable ids of `rows` rows, int64 [n], as sent by clients of the inference protocol."""
        self._rows[feature.name] += rows
        vocabulary = self._encoder.vocabulary(feature)
        known = (ids >= 0) & (ids < vocabulary.rows)
        self.unknown += int(known.size - np.count_nonzero(known))
        self._add(feature, vocabulary.rank_of_id[ids[known]])

    def rows(self) -> dict[Role, int]:
        """Returns the number of contexts and candidates counted, for each role the maximum over its
        features.
        """
        features = self._encoder.schema.categorical
        return {
            role: max((self._rows[f.name] for f in features if f.role == role), default=0) for role in ROLES
        }

    def by_id(self) -> dict[str, I64]:
        """Returns the lookups by table, int64 [rows], in the order of stable ids."""
        vocabularies = self._encoder.vocabularies
        return {t: counts[vocabularies[t].rank_of_id] for t, counts in self._by_rank.items()}

    def _add(self, feature: Categorical, ranks: I64) -> None:
        np.add.at(self._by_rank[feature.table_name], ranks, 1)
