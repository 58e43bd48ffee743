"""The calibrator: counts accesses over training rows, and so puts every table in popularity order.

One streaming pass gives everything an encoder needs besides the schema: a vocabulary a table, with
the rows of the table ranked by sampled accesses, and mean and deviation of the dense features. The
sample is FAE's (VLDB'22, section 3: 5% of the inputs suffice to find the hot rows); which values get
a row at all is decided on all training rows, since one occurrence more or less decides it.

Counting is by distinct value, so memory is bounded by the number of different values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from models.batch import I64
from models.data.reader import Reader
from models.data.split import TRAIN, Splitter
from models.encoder import Standard
from models.errors import DataError
from models.schema import Categorical, Dense, Schema
from models.vocabulary import Vocabulary

SAMPLE = 0.05
SAMPLE_FROM_ROWS = 1_000_000
HOTTEST = (0.01, 0.05, 0.10)

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one pass over the training rows has found.

    vocabularies: by table, in popularity order. standards: by dense feature.
    rows: training rows seen. sampled_rows: those whose accesses were counted for the order.
    """

    vocabularies: dict[str, Vocabulary]
    standards: dict[str, Standard]
    rows: int
    sampled_rows: int


def calibrate(
    reader: Reader,
    schema: Schema,
    splitter: Splitter,
    *,
    which: Sequence[int] = (TRAIN,),
    sample: float | None = None,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Calibration:
    """Counts over the rows of the splits `which`, in one pass.

    sample: share of the rows whose accesses make the order, in (0, 1]; None takes all rows up to a
    million, where a sample would only lose accuracy, and 5% (as FAE does) beyond.
    The order of equally popular rows is that of their ids; ids go by the count over all training
    rows, ties by value. `progress` is told the rows of each batch read.
    Raises DataError: no rows in the splits asked for.
    """
    if sample is not None and not 0.0 < sample <= 1.0:
        raise DataError(f"a sample of {sample} is not a share in (0, 1]")
    counters = {table: _Counter(features) for table, features in schema.tables.items()}
    moments = [_Moments(d) for d in schema.dense]
    random = np.random.default_rng(seed)
    rows = sampled_rows = 0
    for data in reader.batches(schema.columns):
        sampled = random.random(data.num_rows) < (SAMPLE if sample is None else sample)
        wanted = np.isin(splitter(data), which)
        if not wanted.all():
            data, sampled = data.filter(pa.array(wanted)), sampled[wanted]
        rows += data.num_rows
        sampled_rows += int(sampled.sum())
        for features, counter in zip(schema.tables.values(), counters.values(), strict=True):
            for feature in features:
                counter.add(feature, data.column(feature.name), sampled)
        for moment in moments:
            moment.add(data.column(moment.feature.name).to_numpy(zero_copy_only=False))
        if progress is not None:
            progress(wanted.size)
    if not rows:
        raise DataError(f"{reader.path}: there are no rows to calibrate on")
    everything = sample is None and rows <= SAMPLE_FROM_ROWS
    return Calibration(
        {table: counter.vocabulary(table, everything) for table, counter in counters.items()},
        {moment.feature.name: moment.standard() for moment in moments},
        rows,
        rows if everything else sampled_rows,
    )


def skew(counts: I64) -> dict[float, float]:
    """Share of the accesses that go to the hottest 1%, 5% and 10% of a table's rows.

    counts: int64 [rows], in rank order. A table without accesses has share 0.
    """
    ends = np.cumsum(counts)
    total = max(int(ends[-1]), 1)
    return {share: int(ends[max(round(counts.size * share), 1) - 1]) / total for share in HOTTEST}


class _Counter:
    """Accesses of one table: by value, over all rows and over the sampled ones."""

    def __init__(self, features: Sequence[Categorical]) -> None:
        self._head = features[0]
        self._type = pa.string() if self._head.type == "string" else pa.int64()
        self._parts: list[pa.Table] = []
        self._pending = self._merged = 0
        self._missing = np.zeros(2, np.int64)

    def add(self, feature: Categorical, column: pa.Array, sampled: Mask) -> None:
        if feature.multi:
            column, sampled = _flat(column, sampled, feature.max_length)
        encoded = column.dictionary_encode()
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        every = np.bincount(codes, minlength=len(encoded.dictionary) + 1)
        some = np.bincount(codes[sampled], minlength=len(encoded.dictionary) + 1)
        self._missing += (every[-1], some[-1])
        self._parts.append(
            pa.table({"value": encoded.dictionary, "every": every[:-1], "sampled": some[:-1]})
        )
        self._pending += len(encoded.dictionary)
        # Merged whenever they have doubled: memory stays in proportion to the different values.
        if self._pending > max(1 << 20, 2 * self._merged):
            self._merge()

    def _merge(self) -> pa.Table:
        total = pa.concat_tables(self._parts).group_by("value", use_threads=False)
        total = total.aggregate([("every", "sum"), ("sampled", "sum")])
        total = total.rename_columns(["value", "every", "sampled"])
        self._parts = [total]
        self._pending = self._merged = total.num_rows
        return total

    def vocabulary(self, table: str, everything: bool) -> Vocabulary:
        """everything: the order counts all rows, not only the sampled ones."""
        total = self._merge()
        of_order = total.column("every" if everything else "sampled").to_numpy()
        missing = int(self._missing[0 if everything else 1])
        if self._head.cardinality is None:
            kept = self._kept(total)
            values = total.column("value").take(pa.array(kept)).combine_chunks().cast(self._type)
            known = of_order[kept]
        else:
            ids = total.column("value").to_numpy()
            inside = (ids >= 0) & (ids < self._head.cardinality)
            values = None
            known = np.zeros(self._head.cardinality, np.int64)
            known[ids[inside]] = of_order[inside]
        accesses = np.concatenate((known, [missing, of_order.sum() - known.sum()]))
        order = np.argsort(-accesses, kind="stable")
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

    def _kept(self, total: pa.Table) -> I64:
        """Positions in `total` of the values that get a row, most frequent first, ties by value."""
        order = pc.sort_indices(total, [("every", "descending"), ("value", "ascending")]).to_numpy()
        frequent = total.column("every").to_numpy()[order] >= self._head.min_count
        kept: I64 = order[frequent][: self._head.max_values].astype(np.int64)
        return kept


def _flat(column: pa.Array, sampled: Mask, max_length: int) -> tuple[pa.Array, Mask]:
    """All values of a column of lists, as far as the encoder keeps them, and whether each is sampled."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = column.flatten()
    row = np.repeat(np.arange(lengths.size), lengths)
    if lengths.size and lengths.max() > max_length:
        place = np.arange(row.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        values, row = values.filter(pa.array(place < max_length)), row[place < max_length]
    return values, sampled[row]


class _Moments:
    """Mean and deviation of one dense feature after log1p, in one pass.

    Batches are merged by Chan, Golub and LeVeque's formula (1979), which does not cancel as sums of
    squares do.
    """

    def __init__(self, feature: Dense) -> None:
        self.feature = feature
        self._count = 0
        self._mean = self._squares = 0.0

    def add(self, raw: NDArray[np.float64]) -> None:
        x = raw[~np.isnan(raw)]
        if not x.size:
            return
        if "log1p" in self.feature.transform:
            x = np.log1p(np.maximum(x, 0.0))
        mean = float(x.mean())
        delta, total = mean - self._mean, self._count + x.size
        self._squares += float(((x - mean) ** 2).sum()) + delta**2 * self._count * x.size / total
        self._mean += delta * x.size / total
        self._count = total

    def standard(self) -> Standard:
        """A feature that never varies keeps deviation 1: it stays 0 after standardising."""
        deviation = float(np.sqrt(self._squares / self._count)) if self._count else 0.0
        return Standard(self._mean, deviation if deviation > 0.0 else 1.0)
