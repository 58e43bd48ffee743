"""Draws synthetic rows from a bundle's vocabulary, with the skew of its training data.

`synthetic_rows` uses the bundle's encoder, whose vocabularies have access counts, and returns an Arrow table
for `traffic.queries.Queries`, like real data. Features are drawn independently, unlike real ones, so use it
for load tests without access to the data, not for quality.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.models.schema.batch import I64
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Dense
from polyrec.models.schema.vocabulary import Vocabulary

MEAN_LIST = 4.0


def synthetic_rows(
    encoder: Encoder,
    requests: int,
    candidates: int | I64,
    random: np.random.Generator,
) -> pa.Table:
    """Draws `requests` requests with `candidates` rows each, grouped by the schema's group column.

    Context features are drawn once per request, the others once per row. Values follow the bundle's
    popularity counts, and are missing as often as in training. Lists have a geometric length with mean 4.
    Numbers are normal, after their transforms, with the mean and deviation of the training rows.
    Raises LoadError if there are no requests, or a request has no candidates.
    """
    sizes = np.broadcast_to(np.asarray(candidates, np.int64), requests)
    if requests < 1 or sizes.min() < 1:
        raise LoadError(
            f"cannot make {requests} requests of {candidates} candidates: both must be at least 1"
        )
    schema = encoder.schema
    rows = int(sizes.sum())
    of_row = np.repeat(np.arange(requests), sizes)
    columns: dict[str, pa.Array] = {}
    count = {"context": requests, "candidate": rows}
    for d in schema.dense:
        standard = encoder.standards.get(d.name, Standard())
        columns[d.name] = _numbers(d, standard, count[d.role], random)
    for f in schema.categorical:
        columns[f.name] = _values(f, encoder.vocabulary(f), count[f.role], random)
    for name in schema.context.names:
        columns[name] = columns[name].take(pa.array(of_row))
    if schema.group is not None:
        columns[schema.group] = pa.array(of_row)
    return pa.table(columns)


def _numbers(feature: Dense, standard: Standard, n: int, random: np.random.Generator) -> pa.Array:
    x = random.standard_normal(n)
    if "standardise" in feature.transform:
        x = x * standard.deviation + standard.mean
    if "log1p" in feature.transform:
        x = np.maximum(np.expm1(x), 0.0)
    return pa.array(np.round(x, 4))


def _values(feature: Categorical, vocabulary: Vocabulary, n: int, random: np.random.Generator) -> pa.Array:
    if not feature.multi:
        return _drawn(vocabulary, n, random)
    lengths = np.minimum(random.geometric(1 / (1 + MEAN_LIST), n) - 1, feature.max_length)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    # a list's value is never missing; the list is shorter instead
    values = _drawn(vocabulary, int(lengths.sum()), random, missing=False)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _drawn(vocabulary: Vocabulary, n: int, random: np.random.Generator, missing: bool = True) -> pa.Array:
    """Draws raw values by popularity, [n]; uniformly if all counts are zero."""
    counts = vocabulary.counts[vocabulary.rank_of_id].astype(np.float64)  # by id
    if vocabulary.specials:
        counts[vocabulary.oov_id] = 0.0
        if not missing:
            counts[vocabulary.missing_id] = 0.0
    if not counts.sum():
        counts[: vocabulary.size] = 1.0
    ids = random.choice(counts.size, n, p=counts / counts.sum())
    if vocabulary.values is None:
        values: Any = pa.array(np.arange(vocabulary.size))
    else:
        values = vocabulary.values
    # ids beyond the values mean the missing row, and become null
    return values.take(pa.array(ids, mask=ids >= vocabulary.size))
