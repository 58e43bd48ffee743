"""Draws synthetic requests with the popularity of the calibration, different for every batch.

Values, including missing and unknown ones, have the skew of the training data
(loadtest/traffic/feature_draws.py). Correlations between features (a user's items) are not reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyrec.loadtest.traffic.feature_draws import (
    NOTHING_COUNTED,
    IdDraws,
    bag_lengths,
    draw_lengths,
    draw_numbers,
)
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.request.pending import computed
from polyrec.models.schema.schema import ROLES, Categorical, Dense, Role
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.server.codecs.request_features import ColumnFeatures

Columns = dict[str, list[Any]]

AT_ONCE = 8192


class Requests:
    """Draws requests for a bundle's encoder, from one seeded generator.

    ranking: whether the schema has both roles, so that a request is one context with its candidates;
    otherwise rows are plain.
    counted: number of contexts and candidates that the counts cover, if known.
    """

    def __init__(
        self,
        encoder: Encoder,
        random: np.random.Generator,
        counted: Mapping[Role, float] = NOTHING_COUNTED,
    ) -> None:
        schema = encoder.schema
        self._encoder = encoder
        self._features = ColumnFeatures(schema)
        self._random = random
        self.ranking = bool(schema.context.names) and bool(schema.candidate.names)
        tables = encoder.vocabularies
        values = {t: _Values(v) for t, v in tables.items()}
        # lists have no missing values, so these counts belong to single-valued features
        listed = {f.table_name for f in schema.categorical if f.multi}
        inside = {t: _Values(tables[t], missing=False) for t in listed}
        lengths = bag_lengths(schema, tables, counted)
        self._columns: dict[Role, dict[str, Callable[[int], list[Any]]]] = {}
        for role in ROLES:
            layout = schema.layout(role)
            draws = self._columns[role] = {}
            for d in layout.supplied:
                draws[d.name] = _Numbers(d, encoder.standards.get(d.name, Standard()), random)
            for f in layout.singles:
                draws[f.name] = _Singles(values[f.table_name], random)
            for f in layout.bags:
                draws[f.name] = _Bags(inside[f.table_name], f, lengths[f.name], random)

    def columns(self, role: Role, rows: int) -> Columns:
        """Draws raw values of one role's features, in the format of a JSON request."""
        return {name: draw(rows) for name, draw in self._columns[role].items()}

    def request(self, rows: int) -> tuple[Columns, Columns]:
        """Draws (context, candidates): a ranking request of `rows` candidates, or `rows` plain rows."""
        return self.columns("context", 1 if self.ranking else rows), self.columns("candidate", rows)

    def encode(self, context: Columns, candidates: Columns, rows: int) -> Batch:
        """Encodes a drawn request as a batch."""
        shared = np.zeros(rows, np.int64) if self.ranking else None
        read = self._features.ranked if self.ranking else self._features.plain
        request = computed(read(context, candidates, rows))
        return Batch(
            self._encoder.block("context", context, 1 if self.ranking else rows),
            self._encoder.block("candidate", candidates, rows, request),
            shared,
        )


class _Values:
    """Draws raw values of one table by its access counts, including missing and unknown ones."""

    def __init__(self, vocabulary: Vocabulary, missing: bool = True) -> None:
        self._vocabulary = vocabulary
        self._draw_ids = IdDraws(vocabulary, missing)
        self._unknown: str | int = "(never seen)" if vocabulary.type == "string" else -1

    def __call__(self, count: int, random: np.random.Generator) -> list[Any]:
        v = self._vocabulary
        ids = self._draw_ids(count, random)
        if v.values is None:
            drawn: list[Any] = ids.tolist()
        elif v.size:
            drawn = v.values.take(np.minimum(ids, v.size - 1)).to_pylist()
        else:
            drawn = [None] * count
        for i in np.flatnonzero(ids >= v.size).tolist():
            drawn[i] = None if ids[i] == v.missing_id else self._unknown
        return drawn


class _Singles:
    """Draws many values at once and returns them in pieces, because most requests are small."""

    def __init__(self, values: _Values, random: np.random.Generator) -> None:
        self._values, self._random = values, random
        self._drawn: list[Any] = []
        self._next = 0

    def __call__(self, rows: int) -> list[Any]:
        if self._next + rows > len(self._drawn):
            self._drawn, self._next = self._values(max(rows, AT_ONCE), self._random), 0
        self._next += rows
        return self._drawn[self._next - rows : self._next]


class _Bags:
    def __init__(
        self, values: _Values, feature: Categorical, mean: float, random: np.random.Generator
    ) -> None:
        self._flat = _Singles(values, random)
        self._mean, self._longest, self._random = mean, feature.max_length, random

    def __call__(self, rows: int) -> list[Any]:
        lengths = draw_lengths(self._mean, self._longest, rows, self._random)
        return [self._flat(n) for n in lengths.tolist()]


class _Numbers:
    def __init__(self, feature: Dense, standard: Standard, random: np.random.Generator) -> None:
        self._feature, self._standard, self._random = feature, standard, random

    def __call__(self, rows: int) -> list[Any]:
        drawn: list[Any] = draw_numbers(self._feature, self._standard, rows, self._random).tolist()
        return drawn
