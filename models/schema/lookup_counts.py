"""Counts look-ups of every row of a model that exists, by stable id.

models/schema/popularity.py counts values to make a vocabulary of them; here the vocabulary is given.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from polyrec.models.schema.batch import I64, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Role


class LookupCounts:
    """Look-ups of the rows of all tables. unknown: values that no row serves; they are not counted."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._by_rank = {t: np.zeros(v.rows, np.int64) for t, v in encoder.vocabularies.items()}
        self.unknown = 0

    def add_block(self, role: Role, block: Block) -> None:
        """Counts an encoded block; a shared context counts once."""
        layout = self._encoder.schema.layout(role)
        for i, feature in enumerate(layout.singles):
            self._add(feature, block.ranks[:, i])
        bags = len(layout.bags)
        if not bags:
            return
        lengths = np.diff(block.bag_offsets)
        feature_of = np.repeat(np.arange(lengths.size) % bags, lengths)
        for i, feature in enumerate(layout.bags):
            self._add(feature, block.bag_values[feature_of == i])

    def add_values(self, feature: Categorical, values: pa.Array) -> None:
        """Counts raw values; a null is a missing value."""
        ranks = self._encoder.vocabulary(feature).encode_arrow(values)
        known = ranks >= 0
        self.unknown += int(known.size - np.count_nonzero(known))
        self._add(feature, ranks[known])

    def add_ids(self, feature: Categorical, ids: I64) -> None:
        """Counts stable ids, int64 [n], as clients of the inference protocol send them."""
        vocabulary = self._encoder.vocabulary(feature)
        known = (ids >= 0) & (ids < vocabulary.rows)
        self.unknown += int(known.size - np.count_nonzero(known))
        self._add(feature, vocabulary.rank_of_id[ids[known]])

    def by_id(self) -> dict[str, I64]:
        """Returns the look-ups by table, int64 [rows], in the order of stable ids."""
        vocabularies = self._encoder.vocabularies
        return {t: counts[vocabularies[t].rank_of_id] for t, counts in self._by_rank.items()}

    def _add(self, feature: Categorical, ranks: I64) -> None:
        np.add.at(self._by_rank[feature.table_name], ranks, 1)
