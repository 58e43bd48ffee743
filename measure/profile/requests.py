"""Draws synthetic requests with the popularity of the calibration, different for every batch.

A bundle has the access counts of every table's rows. A feature's values are drawn from its table's counts,
including missing and unknown values, so that measurements have the skew of the data. Lengths of multi-valued
features are drawn around the mean that the counts imply, numbers by mean and deviation. Correlations between
features (a user's items) are not reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64, Batch
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import counted_lookups
from polyrec.models.schema.schema import ROLES, Categorical, Dense, Role, Schema
from polyrec.models.schema.vocabulary import Vocabulary, ids_of_ranks
from polyrec.server.codecs.request_features import ColumnFeatures

Columns = dict[str, list[Any]]

AT_ONCE = 8192
NOTHING_COUNTED: Mapping[Role, float] = MappingProxyType({})
UNKNOWN_BAG = 4
"""Mean length of a multi-valued feature if the counts do not imply one."""


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
        features = self._features.ranked if self.ranking else self._features.plain
        return Batch(
            self._encoder.block("context", context, 1 if self.ranking else rows),
            self._encoder.block("candidate", candidates, rows, features(context, candidates, rows)),
            shared,
        )


def bag_lengths(
    schema: Schema,
    vocabularies: Mapping[str, Vocabulary],
    counted: Mapping[Role, float] = NOTHING_COUNTED,
) -> dict[str, float]:
    """Estimates the mean length of each multi-valued feature from the counts.

    counted: number of contexts and candidates that the counts cover. If unknown, it is derived from tables
    with only single-valued features, each of which has one access per context or candidate. Accesses of a
    table beyond its single-valued features belong to its bags.
    """
    accesses = {t: int(vocabularies[t].counts.sum()) for t in schema.tables}
    blocks = counted_lookups(schema, accesses) | dict(counted)
    lengths: dict[str, float] = {}
    for table, features in schema.tables.items():
        bags = [f for f in features if f.multi]
        if not bags:
            continue
        beyond = accesses[table] - sum(blocks[f.role] for f in features if not f.multi)
        looked = sum(blocks[f.role] for f in bags)
        mean = max(beyond, 0.0) / looked if looked else UNKNOWN_BAG
        lengths |= {f.name: min(mean, float(f.max_length)) for f in bags}
    return lengths


class _Values:
    """Draws raw values of one table by its access counts; uniformly without counts."""

    def __init__(self, vocabulary: Vocabulary, missing: bool = True) -> None:
        v = self._vocabulary = vocabulary
        counts = v.counts.astype(np.float64)
        if v.specials and not missing:
            counts[v.missing_rank] = 0.0
        if v.specials and v.oov == "refuse":
            counts[v.rank_of_id[v.oov_id]] = 0.0
        if not counts.sum():
            counts[v.rank_of_id[: v.size]] = 1.0
        self._ends = np.cumsum(counts)
        self._ends /= self._ends[-1]
        self._id_of_rank = ids_of_ranks(v.rank_of_id)
        self._unknown: str | int = "(never seen)" if v.type == "string" else -1

    def __call__(self, count: int, random: np.random.Generator) -> list[Any]:
        v = self._vocabulary
        ranks = np.searchsorted(self._ends, random.random(count), side="right")
        ids: I64 = self._id_of_rank[ranks]
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
        lengths = np.minimum(self._random.poisson(self._mean, rows), self._longest).tolist()
        return [self._flat(n) for n in lengths]


class _Numbers:
    """Draws numbers that are normal after the feature's transforms, by inverting the transforms."""

    def __init__(self, feature: Dense, standard: Standard, random: np.random.Generator) -> None:
        self._log = "log1p" in feature.transform
        self._standard = standard
        self._random = random

    def __call__(self, rows: int) -> list[Any]:
        x: NDArray[np.float64] = self._random.normal(self._standard.mean, self._standard.deviation, rows)
        if self._log:
            x = np.expm1(np.clip(x, 0.0, 80.0))
        drawn: list[Any] = x.tolist()
        return drawn
