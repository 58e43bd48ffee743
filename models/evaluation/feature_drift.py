"""Measures how far the features of served rows have drifted from those at training, by the population
stability index.

    PSI = sum over bins of (p - q) ln(p / q)      p: share of served lookups in a bin, q: of the reference's

The reference is built from the test rows, which no training has seen, so its shares of unknown values are
realistic. Numbers are divided into bins of equal shares, as are ids, by their rank in popularity order;
missing values have a separate bin. Unknown values are in no bin, and their share is counted separately. A
context feature counts once per row of its request, so that shared and repeated contexts give the same result.

The rows of a request are alike, so requests are the sampling units. Even between two samples of one
distribution, the expected index is above 0; this mean is subtracted (to first order the correction of Rao and
Scott, 1981).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyrec.models.data.encoded import EncodedRows
from polyrec.models.files import Strict
from polyrec.models.schema.batch import F64, I64, Batch, Block
from polyrec.models.schema.dedup.columns import columns_of
from polyrec.models.schema.dedup.distinct import Jagged
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES, RoleLayout
from polyrec.models.schema.vocabulary import REJECTED

FEATURE_REFERENCE = "feature_reference"
"""Key of `Manifest.training`."""
BINS = 10
MAX_BINS = BINS + 1
SMOOTHING = 0.5
"""Added to each bin's count: an empty bin would make the index infinite."""
REFERENCE_ROWS = 200_000
"""Most rows that a reference is made of: runs of neighbors from all parts of the test rows."""
RUNS = 50

Share = Annotated[float, Field(ge=0, le=1)]


class FeatureBins(Strict):
    """The reference of one feature.

    edges: ascending; a number or rank x is in bin i if edges[i - 1] <= x < edges[i].
    shares: share of each bin; ids have one more bin, for missing values.
    unknown: share of lookups of values that the vocabulary lacks, which no bin counts.
    independent: number of independent rows whose shares would be equally certain; 0: unknown, since all
        lookups were in one bin.
    """

    edges: Annotated[tuple[float, ...], Field(max_length=BINS)]
    shares: Annotated[tuple[Share, ...], Field(max_length=MAX_BINS)]
    unknown: Share
    independent: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _edges_fit(self) -> Self:
        if not len(self.edges) < len(self.shares) <= len(self.edges) + 2:
            raise ValueError(f"{len(self.edges)} edges, {len(self.shares)} shares")
        return self


class FeatureReference(Strict):
    """The references of a bundle's features, in its row order. rows, requests: number of those counted."""

    version: Literal[1] = 1
    rows: int
    requests: int
    features: dict[str, FeatureBins]


@dataclass(slots=True)
class FeatureCounts:
    """Lookups of all features by bin, with sums over requests from which their variance follows.

    counts, squares, crossed: float64 [features, MAX_BINS], sums over requests of n, n * n, and n times the
    request's lookups in all bins; squared: float64 [features], of the square of the latter. unknown: float64
    [features].
    """

    counts: F64
    squares: F64
    crossed: F64
    squared: F64
    unknown: F64
    rows: int = 0
    requests: int = 0

    @classmethod
    def empty(cls, features: int) -> Self:
        shape = features, MAX_BINS
        of_bins = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        return cls(*of_bins, np.zeros(features), np.zeros(features))

    def merge(self, other: FeatureCounts) -> None:
        """Adds the counts of other requests."""
        self.counts += other.counts
        self.squares += other.squares
        self.crossed += other.crossed
        self.squared += other.squared
        self.unknown += other.unknown
        self.rows += other.rows
        self.requests += other.requests

    @property
    def lookups(self) -> F64:
        """Lookups of each feature in its bins, float64 [features]."""
        return np.asarray(self.counts.sum(1))

    def variances(self, feature: int) -> F64:
        """Variances of a feature's shares, float64 [MAX_BINS], requests being drawn independently."""
        total = self.counts[feature].sum()
        p = self.counts[feature] / total
        spread = self.squares[feature] - 2 * p * self.crossed[feature] + p * p * self.squared[feature]
        return np.asarray(np.maximum(spread, 0.0) / total**2)


class FeatureBinner:
    """Counts lookups of batches by feature and bin.

    edges: by feature, see `FeatureBins`; features without edges are left out. encoder: defines the row order
    of the edges.
    """

    def __init__(self, encoder: Encoder, edges: Mapping[str, Sequence[float]]) -> None:
        self._encoder = encoder
        self._layouts = [_Layout.from_encoder(encoder, encoder.schema.layout(role), edges) for role in ROLES]
        self.features = tuple(name for layout in self._layouts for name in layout.names)

    def count(self, batch: Batch, request: I64 | None = None) -> FeatureCounts:
        """Counts a batch.

        request: int64 [rows], the request of each row, from 0; None: rows that share a context form a
        request, else each row is one.
        """
        if request is None:
            request = np.arange(batch.rows) if batch.context_row is None else batch.context_row
        requests = int(request.max()) + 1 if batch.rows else 0
        found = FeatureCounts.empty(len(self.features))
        context = batch.context if batch.context_row is None else batch.context.take(batch.context_row)
        number = 0
        for layout, block in zip(self._layouts, (context, batch.candidate), strict=True):
            for binned, of_row in layout.binned(block):
                known = binned >= 0
                found.unknown[number] = binned.size - np.count_nonzero(known)
                place = (request if of_row is None else request[of_row])[known] * MAX_BINS + binned[known]
                table = np.bincount(place, minlength=requests * MAX_BINS).reshape(-1, MAX_BINS)
                each = table.sum(1)
                found.counts[number] = table.sum(0)
                found.squares[number] = (table * table).sum(0)
                found.crossed[number] = each @ table
                found.squared[number] = each @ each
                number += 1
        found.rows, found.requests = batch.rows, int(np.unique(request).size)
        return found


@dataclass(frozen=True, slots=True)
class _Layout:
    """The features of a role: (column, edges) of numbers; (column, edges, missing, unknown rank) of ids."""

    names: tuple[str, ...]
    numbers: list[tuple[int, F64]]
    singles: list[tuple[int, F64, int, int]]
    bags: list[tuple[int, F64, int, int]]

    @classmethod
    def from_encoder(
        cls, encoder: Encoder, layout: RoleLayout, edges: Mapping[str, Sequence[float]]
    ) -> _Layout:
        def ids(features: Sequence[Any]) -> list[tuple[int, F64, int, int]]:
            found = []
            for i, f in enumerate(features):
                if f.name in edges:
                    v = encoder.vocabulary(f)
                    found.append((i, np.array(edges[f.name], np.float64), v.missing_rank, v.oov_rank))
            return found

        numbers = [
            (i, np.array(edges[f.name], np.float64)) for i, f in enumerate(layout.dense) if f.name in edges
        ]
        every = [f.name for f in layout.dense] + [f.name for f in layout.singles + layout.bags]
        names = tuple(name for name in every if name in edges)
        return cls(names, numbers, ids(layout.singles), ids(layout.bags))

    def binned(self, block: Block) -> Iterator[tuple[I64, I64 | None]]:
        """Yields the bins of each feature's lookups, -1 for unknown values, and their rows in the block.

        None instead of the rows: one lookup in each.
        """
        for i, edges in self.numbers:
            yield np.searchsorted(edges, block.dense[:, i], side="right"), None
        for i, edges, missing, unknown in self.singles:
            yield bins_of_ranks(block.ranks[:, i], edges, missing, unknown), None
        if not self.bags:
            return
        column = block.bag_columns()
        row = np.repeat(np.arange(block.rows), np.diff(block.bag_offsets).reshape(block.rows, -1).sum(1))
        for i, edges, missing, unknown in self.bags:
            mine = column == i
            yield bins_of_ranks(block.bag_values[mine], edges, missing, unknown), row[mine]


def bins_of_ranks(ranks: I64, edges: F64, missing: int, unknown: int) -> I64:
    """Returns the bin of each rank, int64 [n]; -1 for unknown values. missing, unknown: ranks, or -1."""
    found: I64 = np.searchsorted(edges, ranks, side="right")
    if missing != REJECTED:
        found[ranks == missing] = edges.size + 1
    if unknown != REJECTED:
        found[ranks == unknown] = -1
    return found


def reference_of(encoder: Encoder, data: EncodedRows, rows: I64) -> FeatureReference | None:
    """Builds the reference from some rows; None if there are none. rows: int64 [n], in data order."""
    if not rows.size:
        return None
    length = max(1, REFERENCE_ROWS // RUNS)
    if rows.size > REFERENCE_ROWS:
        starts = np.linspace(0, rows.size - length, RUNS).astype(np.int64)
        runs = [rows[start : start + length] for start in starts]
    else:
        runs = [rows[start : start + length] for start in range(0, rows.size, length)]
    batches = [data.batch(run) for run in runs]
    edges = _edges(encoder, batches)
    binner = FeatureBinner(encoder, edges)
    counts = FeatureCounts.empty(len(binner.features))
    for run, batch in zip(runs, batches, strict=True):
        request = None if data.group is None else np.unique(data.group[run], return_inverse=True)[1]
        counts.merge(binner.count(batch, request))
    features = {}
    ids = {f.name for f in encoder.schema.categorical}
    for i, (name, lookups) in enumerate(zip(binner.features, counts.lookups.tolist(), strict=True)):
        if not lookups:
            continue
        # ids have one more bin, for missing values
        used = len(edges[name]) + 1 + (name in ids)
        shares = counts.counts[i, :used] / lookups
        spread = counts.variances(i).sum()
        features[name] = FeatureBins(
            edges=tuple(float(e) for e in edges[name]),
            shares=tuple(shares.tolist()),
            unknown=float(counts.unknown[i] / (counts.unknown[i] + lookups)),
            independent=float((1 - (shares**2).sum()) / spread) if spread > 0 else 0.0,
        )
    return FeatureReference(rows=counts.rows, requests=counts.requests, features=features)


def _edges(encoder: Encoder, batches: Iterable[Batch]) -> dict[str, list[float]]:
    """Returns the edges of each feature's bins, by its known, present values in all batches."""
    values: dict[str, list[NDArray[Any]]] = {}
    for batch in batches:
        for name, column in columns_of(batch, encoder.schema).items():
            values.setdefault(name, []).append(column.values if isinstance(column, Jagged) else column)
    vocabulary = {f.name: encoder.vocabulary(f) for f in encoder.schema.categorical}
    found = {}
    for name, parts in values.items():
        own = np.concatenate(parts)
        if name in vocabulary:
            v = vocabulary[name]
            own = own[(own != v.missing_rank) & (own != v.oov_rank)]
        if own.size:
            found[name] = _equal_shares(own)
    return found


def _equal_shares(values: NDArray[Any]) -> list[float]:
    """Returns the edges that divide values, at least one, into at most BINS bins of equal shares."""
    # a value equal to a quantile begins a bin; equal quantiles, as of a hot id, form one edge
    cuts = np.quantile(values, np.arange(1, BINS) / BINS, method="inverted_cdf")
    found = [float(c) for c in np.unique(cuts) if c > values.min()]
    if not found and values.max() > values.min():
        # one value is nine tenths of all or more: a bin of it, and one of the others
        found = [float(values[values > values.min()].min())]
    return found


def stability_index(reference: FeatureBins, counts: FeatureCounts, feature: int) -> float | None:
    """Returns the index of a feature's counts, less its mean under no change; None without lookups.

    It is at least 0, and is the part that chance does not explain.
    """
    if not counts.counts[feature].any():
        return None
    used = len(reference.shares)
    smoothed = counts.counts[feature, :used] + SMOOTHING
    p = smoothed / smoothed.sum()
    q = np.array(reference.shares)
    # 0 is unknown and taken as that of the counts; as that of one row, the index would be 2 without drift
    independent = max(reference.independent or counts.requests, 1.0)
    q = np.maximum(q, SMOOTHING / independent) / np.maximum(q, SMOOTHING / independent).sum()
    psi = float(((p - q) * np.log(p / q)).sum())
    variance = counts.variances(feature)[:used] + q * (1 - q) / independent
    return max(0.0, psi - float((variance / ((p + q) / 2)).sum()))


def keep_reference(training: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry of a manifest's `training` for a bundle derived with the same order of rows."""
    return {FEATURE_REFERENCE: training[FEATURE_REFERENCE]} if FEATURE_REFERENCE in training else {}


def read_reference(training: Mapping[str, Any]) -> FeatureReference | None:
    """Returns the reference in a manifest's `training`; None if it has none, or one of another version."""
    entry = training.get(FEATURE_REFERENCE)
    if not isinstance(entry, dict) or entry.get("version") != 1:
        return None
    return FeatureReference.model_validate(entry)
