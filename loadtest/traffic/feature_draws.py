"""Draws values of features with the popularity, lengths and distribution of a bundle's training data.

A bundle has the access counts of every table's rows. Ids are drawn from its table's counts, lengths of
multi-valued features around the mean that the counts imply, numbers by mean and deviation. Load tests
(synthetic.py) and profiles (measure/profile/requests.py) draw their requests from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.popularity import counted_lookups
from polyrec.models.schema.schema import Dense, Role, Schema
from polyrec.models.schema.vocabulary import Vocabulary, ids_of_ranks

NOTHING_COUNTED: Mapping[Role, float] = MappingProxyType({})
UNKNOWN_BAG = 4
"""Mean length of a multi-valued feature if the counts do not imply one."""


class IdDraws:
    """Draws ids of one table by its access counts; uniformly without counts.

    missing, unknown: whether to draw the ids of missing and of out-of-vocabulary values, which are not less
    than the vocabulary's size, as often as they were counted. A table that refuses unknown values has none.
    """

    def __init__(self, vocabulary: Vocabulary, missing: bool = True, unknown: bool = True) -> None:
        v = vocabulary
        counts = v.counts.astype(np.float64)
        if v.specials and not missing:
            counts[v.missing_rank] = 0.0
        if v.specials and (not unknown or v.oov == "refuse"):
            counts[v.rank_of_id[v.oov_id]] = 0.0
        if not counts.sum():
            counts[v.rank_of_id[: v.size]] = 1.0
        self._ends = np.cumsum(counts)
        self._ends /= self._ends[-1]
        self._id_of_rank = ids_of_ranks(v.rank_of_id)

    def __call__(self, count: int, random: np.random.Generator) -> I64:
        """Draws ids, int64 [count]."""
        ranks = np.searchsorted(self._ends, random.random(count), side="right")
        ids: I64 = self._id_of_rank[ranks]
        return ids


def draw_numbers(feature: Dense, standard: Standard, count: int, random: np.random.Generator) -> F64:
    """Draws raw numbers that are normal after the feature's transforms, float64 [count]."""
    x: F64 = random.normal(standard.mean, standard.deviation, count)
    return np.expm1(np.clip(x, 0.0, 80.0)) if "log1p" in feature.transform else x


def draw_lengths(mean: float, longest: int, count: int, random: np.random.Generator) -> I64:
    """Draws lengths of lists, int64 [count]: Poisson with this mean, at most `longest`."""
    return np.minimum(random.poisson(mean, count), longest)


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
