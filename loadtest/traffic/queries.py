"""Builds the queries of a load test from rows of data, as real clients send them.

The rows of one request (`group` in the schema) form one query: the context of the first row and the
candidates of all. Ids for the inference protocol come from the vocabularies of the served bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.loadtest.traffic.request_bodies import (
    Array,
    Features,
    Ids,
    infer_body,
    plain_tensors,
    predict_body,
    rank_body,
    ranking_tensors,
)
from polyrec.models.data.reader import open_data
from polyrec.models.data.request_columns import value_codes
from polyrec.models.schema.batch import I64, take_bags
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.request.codes import NO_VALUE
from polyrec.models.schema.request.features import RequestFeatures
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import ids_of_ranks

UNGROUPED_ROWS = 23
"""Candidates of a query if the data have no requests."""

Request = tuple[bytes, dict[str, str]]
"""Body and headers."""


@dataclass(frozen=True, slots=True)
class Query:
    """Row numbers in the data: of the context, and of the candidates, int64 [candidates]."""

    context: int
    candidates: I64


class Queries:
    """Queries over rows of data, and requests for them."""

    def __init__(self, data: pa.Table, schema: Schema, encoder: Encoder | None = None) -> None:
        """Takes the data; encoder is needed for requests of the inference protocol. Raises LoadError for
        no rows.
        """
        if not data.num_rows:
            raise LoadError("there are no rows to make requests from")
        self._data = data.combine_chunks()
        self._context, self._candidate = schema.context.names, schema.candidate.names
        self._features = Features.from_schema(schema.model_dump())
        self._ids = {} if encoder is None else _ids(self._data, schema, encoder)
        if schema.group is None:
            firsts = np.arange(0, data.num_rows, UNGROUPED_ROWS)
        else:
            firsts = np.flatnonzero(_changes(self._data[schema.group].combine_chunks()))
        self._ends = np.append(firsts, data.num_rows)

    def __len__(self) -> int:
        return self._ends.size - 1

    @property
    def firsts(self) -> I64:
        """The row with the context of each query, int64 [queries]."""
        return self._ends[:-1]

    @property
    def sizes(self) -> I64:
        """Number of candidates of each query, int64 [queries]."""
        return np.diff(self._ends)

    def __getitem__(self, i: int) -> Query:
        first, end = self._ends[i], self._ends[i + 1]
        return Query(int(first), np.arange(first, end))

    def sample(self, candidates: int, random: np.random.Generator) -> Query:
        """Draws a context of the data, and candidates from all rows."""
        context = int(random.choice(self.firsts))
        return Query(context, random.integers(0, self._data.num_rows, candidates))

    def predict(self, query: Query) -> Request:
        """Builds a request of /v1/predict, with the context in every row."""
        rows = query.candidates
        columns = self._columns(self._context, np.full(rows.size, query.context))
        return predict_body(columns | self._columns(self._candidate, rows)), {}

    def rank(self, query: Query) -> Request:
        """Builds a request of /v1/rank."""
        context = self._columns(self._context, np.array([query.context]))
        candidates = self._columns(self._candidate, query.candidates)
        return rank_body({name: values[0] for name, values in context.items()}, candidates), {}

    def infer(self, query: Query, binary: bool = True) -> Request:
        """Builds a request of the inference protocol, with the context in every row."""
        context = self._taken(self._context, np.full(query.candidates.size, query.context))
        columns = context | self._taken(self._candidate, query.candidates)
        return infer_body(plain_tensors(self._features, columns), binary=binary)

    def infer_ranking(self, query: Query, binary: bool = True) -> Request:
        """Builds a request of the inference protocol, with the context once."""
        context = self._taken(self._context, np.array([query.context]))
        candidates = self._taken(self._candidate, query.candidates)
        return infer_body(ranking_tensors(self._features, context, candidates), binary=binary)

    def _columns(self, names: Sequence[str], rows: I64) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = self._data.select(list(names)).take(rows).to_pydict()
        return columns

    def _taken(self, names: Sequence[str], rows: I64) -> dict[str, Ids]:
        if not self._ids:
            raise LoadError("requests of the inference protocol need the bundle that is served")
        taken: dict[str, Ids] = {}
        for name in names:
            ids = self._ids[name]
            if isinstance(ids, tuple):
                values, offsets = take_bags(*ids, rows)
                taken[name] = values, np.diff(offsets)
            else:
                taken[name] = ids[rows]
        return taken


def read_rows(path: str | Path, schema: Schema, rows: int) -> pa.Table:
    """Reads the first `rows` rows of the data: features and group. Raises DataError or LoadError."""
    names = (*schema.context.names, *schema.candidate.names, *([schema.group] if schema.group else []))
    batches, found = [], 0
    for batch in open_data(path, schema).batches(names, min(rows, 65536)):
        batches.append(batch.slice(0, rows - found))
        found += batches[-1].num_rows
        if found == rows:
            break
    if not batches:
        raise LoadError(f"'{path}' has no rows")
    return pa.Table.from_batches(batches)


def _ids(data: pa.Table, schema: Schema, encoder: Encoder) -> dict[str, Array | tuple[I64, I64]]:
    """Maps each feature to the numbers or stable ids of all rows; (values, offsets) for a multi-valued
    one.
    """
    found: dict[str, Array | tuple[I64, I64]] = {}
    features = RequestFeatures(schema)
    compared = {f.name for f in (*features.singles, *features.bags)}
    for d in schema.dense:
        # the protocol has no NaN, so clients must fill in missing values
        raw = data[d.name].to_numpy().astype(np.float64)
        found[d.name] = np.where(np.isnan(raw), d.missing, raw)
    for f in schema.categorical:
        vocabulary = encoder.vocabulary(f)
        column = data[f.name].combine_chunks()
        ranks = vocabulary.encode_arrow(column.flatten() if f.multi else column)
        if ranks.size and ranks.min() < 0:
            raise LoadError(f"feature '{f.name}' has a value that the bundle rejects; give other data")
        ids = ids_of_ranks(vocabulary.rank_of_id)[ranks]
        if f.name in compared and vocabulary.specials:
            # request features compare unknown values too, so each gets its own negative number
            codes = value_codes(column.flatten() if f.multi else column, NO_VALUE)
            own = -1 - (codes.view(np.uint64) >> np.uint64(1)).view(np.int64)
            ids = np.where(ids == vocabulary.oov_id, own, ids)
        if f.multi:
            lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            kept = np.minimum(lengths, f.max_length)
            if kept.sum() != lengths.sum():
                raise LoadError(f"feature '{f.name}' has a list of over {f.max_length} values")
            found[f.name] = ids, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        else:
            found[f.name] = ids
    return found


def _changes(group: pa.Array) -> Array:
    """Returns True where a row's value differs from its predecessor's, and for the first row."""
    codes = group.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.append(True, codes[1:] != codes[:-1])
