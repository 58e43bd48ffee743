"""Reads what request features are computed from, in JSON columns or in tensors of stable ids.

Request features (models/schema/request/features.py) compare all rows of a request. They are computed when a
batch is encoded, for all its requests at once, or when a request is split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import F32, F64, I64
from polyrec.models.schema.dedup.distinct import Jagged
from polyrec.models.schema.encoder import check_lengths, check_longest
from polyrec.models.schema.request.codes import (
    NO_CONTEXT_VALUE,
    NO_VALUE,
    codes_of_values,
    hashed_apart,
    integer_codes,
    match_values,
    singles,
)
from polyrec.models.schema.request.features import RequestFeatures
from polyrec.models.schema.request.pending import PendingFeatures, RequestValues
from polyrec.models.schema.request.rows import RequestRows
from polyrec.models.schema.schema import ROLES, Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.server.codecs.rows import Bags, Column

NamedColumns = Mapping[str, Column]


class ColumnFeatures:
    """Reads one schema's request features from columns of raw values."""

    def __init__(self, schema: Schema) -> None:
        self._features = RequestFeatures(schema)
        self._bags = {f.name: f for f in self._features.bags}
        self._integers = {f.name for f in schema.categorical if f.type == "integer"}

    def ranked(self, context: NamedColumns, candidate: NamedColumns, rows: int) -> PendingFeatures:
        """Prepares the features of one context's candidates. Raises FeatureError."""
        candidates = {
            of: self._hashable(of, candidate.get(of) or (None,) * rows) for of in self._features.candidate
        }
        matches = {}
        for of, to in self._features.matches:
            (values,) = context.get(to) or (None,)
            bag = self._bags.get(to)
            if bag is None:
                values = (values,)
            else:
                values = values or ()
                check_longest(bag, np.array([len(values)]))
            matches[of, to] = match_values(candidates[of], self._hashable(to, values))
        raw = RequestRows(np.array([rows]), self._numbers(candidate, rows), matches)
        return PendingFeatures(self._features, raw)

    def plain(
        self, context: NamedColumns, candidate: NamedColumns, rows: int, group: Column = None
    ) -> RequestValues:
        """Prepares the features of plain rows; computes them if there is a group. Raises FeatureError.

        group: the request of each row, None if all rows are of one request.
        """
        raw = self._plain_rows(context, candidate, rows)
        if group is None:
            return PendingFeatures(self._features, raw)
        (codes,) = codes_of_values([group])
        return self._features.compute_grouped(raw, codes)

    def _hashable(self, name: str, values: Sequence[object]) -> Sequence[object]:
        # the parser has checked the types, and strings need nothing
        return hashed_apart(values) if name in self._integers else values

    def _numbers(self, candidate: NamedColumns, rows: int) -> dict[str, F64]:
        numbers: dict[str, F64] = {}
        for name in self._features.numbers:
            column = candidate.get(name)
            try:
                numbers[name] = np.full(rows, np.nan) if column is None else np.array(column, np.float64)
            except OverflowError:
                raise FeatureError(name, "a value is too large for a number") from None
        return numbers

    def _plain_rows(self, context: NamedColumns, candidate: NamedColumns, rows: int) -> RequestRows:
        """Compares rows that each have their own context."""
        features = self._features
        # values are compared across columns, so all columns share one numbering
        compared = [candidate.get(name) or (None,) * rows for name in features.candidate]
        columns: list[Sequence[Any]] = []
        offsets: list[I64 | None] = []
        for name in features.context:
            given = context.get(name) or (None,) * rows
            bag = self._bags.get(name)
            if bag is None:
                columns.append(given)
                offsets.append(None)
                continue
            lists = [values or () for values in given]
            lengths = np.fromiter(map(len, lists), np.int64, count=rows)
            check_longest(bag, lengths)
            ends = np.zeros(rows + 1, np.int64)
            lengths.cumsum(out=ends[1:])
            columns.append(list(chain.from_iterable(lists)))
            offsets.append(ends)
        codes = iter(codes_of_values(compared, columns))
        of_rows = {name: next(codes) for name in features.candidate}
        of_contexts = {
            name: singles(next(codes)) if ends is None else Jagged(next(codes), ends)
            for name, ends in zip(features.context, offsets, strict=True)
        }
        matches = features.match(of_rows, of_contexts)
        return RequestRows(np.array([rows]), self._numbers(candidate, rows), matches)


class TensorFeatures:
    """Reads one schema's request features from tensors of stable ids.

    All unknown values share the out-of-vocabulary id, so they cannot be compared. For a compared feature,
    clients may instead send any negative number; equal numbers mean equal values.

    vocabularies: by table; without them, ids are compared as they are.
    """

    def __init__(self, schema: Schema, vocabularies: Mapping[str, Vocabulary]) -> None:
        self._features = RequestFeatures(schema)
        self._vocabularies = {
            f.name: vocabularies[f.table_name]
            for f in (*self._features.singles, *self._features.bags)
            if f.table_name in vocabularies
        }
        self._bags = {f.name: f for f in self._features.bags}
        self._columns = {role: schema.tensor_columns(role) for role in (None, *ROLES)}

    def plain(
        self, dense: F32, sparse: I64, bags: Bags, lengths: I64 | None
    ) -> tuple[PendingFeatures, I64, Bags]:
        """Returns (features, sparse, bags), with negative ids replaced in the last two.

        lengths: int64 [requests], consecutive rows of each request; None if all rows are of one request.
        """
        names, of = self._columns[None]
        found = RequestRows(
            np.array([len(sparse)]) if lengths is None else lengths,
            self._numbers(dense, names),
            self._features.match(self._candidate(sparse, of), self._context(sparse, of, bags)),
        )
        return PendingFeatures(self._features, found), self._known(sparse, of), self._known_bags(bags)

    def ranked(
        self, context: tuple[I64, Bags], candidate: tuple[F32, I64], context_row: I64, lengths: I64
    ) -> tuple[PendingFeatures, I64, Bags, I64]:
        """Returns (features, context sparse, context bags, candidate sparse), with negative ids replaced.

        context: sparse, bags.
        candidate: dense, sparse.
        lengths: int64 [contexts], number of candidates.
        """
        (context_sparse, bags), (dense, sparse) = context, candidate
        of_context, (names, of) = self._columns["context"][1], self._columns["candidate"]
        found = RequestRows(
            lengths,
            self._numbers(dense, names),
            self._features.match(
                self._candidate(sparse, of), self._context(context_sparse, of_context, bags), context_row
            ),
        )
        return (
            PendingFeatures(self._features, found),
            self._known(context_sparse, of_context),
            self._known_bags(bags),
            self._known(sparse, of),
        )

    def _numbers(self, dense: F32, names: Sequence[str]) -> dict[str, F64]:
        return {name: dense[:, names.index(name)].astype(np.float64) for name in self._features.numbers}

    def _candidate(self, sparse: I64, of: Sequence[str]) -> dict[str, I64]:
        return {name: self._codes(name, sparse[:, of.index(name)]) for name in self._features.candidate}

    def _context(self, sparse: I64, of: Sequence[str], bags: Bags) -> dict[str, Jagged]:
        found: dict[str, Jagged] = {}
        for name in self._features.context:
            if name in bags:
                ids, lengths = bags[name]
                check_lengths(self._bags[name], ids, lengths, lengths.size)
                offsets = np.zeros(lengths.size + 1, np.int64)
                np.cumsum(lengths, out=offsets[1:])
                found[name] = Jagged(self._codes(name, ids, NO_CONTEXT_VALUE), offsets)
            else:
                found[name] = singles(self._codes(name, sparse[:, of.index(name)], NO_CONTEXT_VALUE))
        return found

    def _codes(self, name: str, ids: I64, missing: int = NO_VALUE) -> I64:
        vocabulary = self._vocabularies.get(name)
        if vocabulary is None or not vocabulary.specials:
            return ids
        # special ids (missing, unknown) equal no other value
        return integer_codes(ids, ids >= vocabulary.size, missing)

    def _replaced(self, name: str, ids: I64) -> I64:
        vocabulary = self._vocabularies.get(name)
        if vocabulary is None or vocabulary.oov_rank < 0 or not ids.size or ids.min() >= 0:
            return ids
        return np.where(ids < 0, vocabulary.oov_id, ids)

    def _known(self, sparse: I64, of: Sequence[str]) -> I64:
        if not sparse.size or sparse.min() >= 0:
            return sparse
        known = sparse.copy()
        for name in self._vocabularies:
            if name in of:
                known[:, of.index(name)] = self._replaced(name, sparse[:, of.index(name)])
        return known

    def _known_bags(self, bags: Bags) -> Bags:
        return {name: (self._replaced(name, ids), lengths) for name, (ids, lengths) in bags.items()}
