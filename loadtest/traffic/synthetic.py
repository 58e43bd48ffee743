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
from polyrec.loadtest.traffic.feature_draws import IdDraws, bag_lengths, draw_lengths, draw_numbers
from polyrec.models.schema.batch import I64
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Dense
from polyrec.models.schema.vocabulary import Vocabulary


def synthetic_rows(
    encoder: Encoder,
    requests: int,
    candidates: int | I64,
    random: np.random.Generator,
) -> pa.Table:
    """Draws `requests` requests with `candidates` rows each, grouped by the schema's group column.

    Context features are drawn once per request, the others once per row. Values follow the bundle's
    popularity counts, and are missing as often as in training; unknown values are not drawn. Lists have the
    mean length of the training rows, numbers (after their transforms) their mean and deviation.
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
    lengths = bag_lengths(schema, encoder.vocabularies)
    for f in schema.categorical:
        mean = lengths.get(f.name, 1.0)
        columns[f.name] = _values(f, encoder.vocabulary(f), mean, count[f.role], random)
    for name in schema.context.names:
        columns[name] = columns[name].take(pa.array(of_row))
    if schema.group is not None:
        columns[schema.group] = pa.array(of_row)
    return pa.table(columns)


def _numbers(feature: Dense, standard: Standard, n: int, random: np.random.Generator) -> pa.Array:
    return pa.array(np.round(draw_numbers(feature, standard, n, random), 4))


def _values(
    feature: Categorical, vocabulary: Vocabulary, mean_length: float, n: int, random: np.random.Generator
) -> pa.Array:
    """Draws raw values, [n]. mean_length: of the lists of a multi-valued feature."""
    if not feature.multi:
        return _raw(vocabulary, IdDraws(vocabulary, unknown=False)(n, random))
    lengths = draw_lengths(mean_length, feature.max_length, n, random)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    # a list's value is never missing; the list is shorter instead
    ids = IdDraws(vocabulary, missing=False, unknown=False)(int(lengths.sum()), random)
    return pa.ListArray.from_arrays(pa.array(offsets), _raw(vocabulary, ids))


def _raw(vocabulary: Vocabulary, ids: I64) -> pa.Array:
    """Returns the raw values of ids; null for the missing value."""
    if vocabulary.values is None:
        values: Any = pa.array(np.arange(vocabulary.size))
    else:
        values = vocabulary.values
    return values.take(pa.array(ids, mask=ids >= vocabulary.size))
