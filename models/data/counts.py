"""Counts accesses of one table by value over a stream of batches, and builds a vocabulary in popularity
order.

Memory is proportional to the number of distinct values: partial counts are merged whenever they have doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from polyrec.models.errors import DataError
from polyrec.models.schema.batch import I64
from polyrec.models.schema.continuation import CountedTable, PreviousVocabularies, continued
from polyrec.models.schema.schema import Categorical
from polyrec.models.schema.vocabulary import Vocabulary

MERGE_FROM = 1 << 20

Mask = NDArray[np.bool_]


class AccessCounts:
    """Accesses of one table by value, over all rows and over the sampled rows that determine the order."""

    def __init__(self, features: Sequence[Categorical]) -> None:
        self._head = features[0]
        self._type = pa.string() if self._head.type == "string" else pa.int64()
        self._parts: list[pa.Table] = []
        self._pending = self._merged = 0
        self._missing = np.zeros(2, np.int64)
        self._rows = dict.fromkeys((f.name for f in features), 0)

    def add(self, feature: Categorical, column: pa.Array, sampled: Mask) -> None:
        """Counts a batch of one of the table's features.

        sampled: bool [rows], rows that determine the order.
        """
        row = self._rows[feature.name] + np.arange(sampled.size)
        self._rows[feature.name] += sampled.size
        if feature.multi:
            column, of = _flat(column, feature.max_length)
            sampled, row = sampled[of], row[of]
        encoded = column.dictionary_encode()
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        every = np.bincount(codes, minlength=len(encoded.dictionary) + 1)
        some = np.bincount(codes[sampled], minlength=len(encoded.dictionary) + 1)
        last = np.full(every.size, -1)
        last[codes[sampled]] = row[sampled]  # for equal codes, the last assignment wins
        self._missing += (every[-1], some[-1])
        columns = {"every": every[:-1], "sampled": some[:-1], "last": last[:-1]}
        self._parts.append(pa.table({"value": encoded.dictionary, **columns}))
        self._pending += len(encoded.dictionary)
        if self._pending > max(MERGE_FROM, 2 * self._merged):
            self._merge()

    def _merge(self) -> pa.Table:
        total = pa.concat_tables(self._parts).group_by("value", use_threads=False)
        total = total.aggregate([("every", "sum"), ("sampled", "sum"), ("last", "max")])
        total = total.rename_columns(["value", "every", "sampled", "last"])
        self._parts = [total]
        self._pending = self._merged = total.num_rows
        return total

    def vocabulary(self, table: str, whole: bool, previous: PreviousVocabularies | None = None) -> Vocabulary:
        """Returns the table's values in popularity order.

        All rows determine which values get a row and an id, ties by value; sampled lookups determine the
        order. Ties in popularity go to the row looked up last, then to the smaller id.
        whole: whether every row was sampled. If so, the number of values seen exactly once estimates the
        lookups of unseen values, which the out-of-vocabulary row will serve, and is added to its count
        (Turing's estimate; Good, Biometrika 1953).
        previous: vocabularies to continue, see models/schema/continuation.py.
        """
        total = self._merge()
        _require_utf8(table, total.column("value"))
        accessed = total.column("sampled").to_numpy()
        missing = int(self._missing[1])
        if previous is not None:
            counted = CountedTable(
                total.column("value").combine_chunks(),
                accessed,
                total.column("last").to_numpy(),
                self._kept(total, None),
                missing,
                whole,
            )
            return continued(table, previous, counted, self._head.max_values)
        if self._head.cardinality is None:
            kept = self._kept(total, self._head.max_values)
            values = total.column("value").take(pa.array(kept)).combine_chunks().cast(self._type)
            known, last = accessed[kept], total.column("last").to_numpy()[kept]
        else:
            ids = total.column("value").to_numpy()
            inside = (ids >= 0) & (ids < self._head.cardinality)
            values = None
            known = np.zeros(self._head.cardinality, np.int64)
            known[ids[inside]] = accessed[inside]
            last = np.full(self._head.cardinality, -1)
            last[ids[inside]] = total.column("last").to_numpy()[inside]
        unknown = int(accessed.sum() - known.sum())
        if whole and values is not None:
            unknown += int((known == 1).sum())
        accesses = np.concatenate((known, [missing, unknown]))
        order = np.lexsort((-np.append(last, [-1, -1]), -accesses))
        rank_of_id = np.empty(order.size, np.int64)
        rank_of_id[order] = np.arange(order.size)
        return Vocabulary(
            table,
            self._head.type,
            known.size,
            rank_of_id,
            accesses[order],
            values,
            oov=self._head.oov,
        )

    def _kept(self, total: pa.Table, max_values: int | None) -> I64:
        """Returns the positions in `total` of the values that get a row, most frequent first, ties by
        value.
        """
        order = pc.sort_indices(total, [("every", "descending"), ("value", "ascending")]).to_numpy()
        frequent = total.column("every").to_numpy()[order] >= self._head.min_count
        kept: I64 = order[frequent][:max_values].astype(np.int64)
        return kept


def _require_utf8(table: str, values: pa.ChunkedArray) -> None:
    """Raises DataError for strings in other encodings, which Parquet files may contain but JSON cannot."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as e:
        raise DataError(
            f"a value of table '{table}' is not UTF-8 ({str(e).splitlines()[0]}); write the file again "
            "with decoded strings"
        ) from None


def _flat(column: pa.Array, max_length: int) -> tuple[pa.Array, I64]:
    """Returns the values of a list column, truncated to `max_length` as in the encoder, and the row of
    each.
    """
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = column.flatten()
    row = np.repeat(np.arange(lengths.size), lengths)
    if lengths.size and lengths.max() > max_length:
        place = np.arange(row.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        values, row = values.filter(pa.array(place < max_length)), row[place < max_length]
    return values, row
