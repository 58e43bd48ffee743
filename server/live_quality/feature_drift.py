"""Measures how features of served rows differ from those that a bundle was trained on, over sliding windows.

    executed batches --one in SAMPLE_S--> counts by feature and bin --windows--> index, unknown values

The reference is in the bundle (models/evaluation/feature_drift.py); a bundle without one is not measured. No
labels and no log are needed. Memory is a few hundred numbers per feature, independent of traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from pydantic import ValidationError

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.evaluation.feature_drift import (
    FeatureBinner,
    FeatureCounts,
    FeatureReference,
    read_reference,
    stability_index,
)
from polyrec.models.files import Strict
from polyrec.models.schema.batch import I64, Batch, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical
from polyrec.models.schema.vocabulary import ids_of_ranks
from polyrec.planner.rollout.window import SlidingWindow

SAMPLE_S = 0.2
"""Minimum time between batches that are counted."""
MAX_ROWS = 1024
"""Maximum rows of a batch that are counted."""
WINDOWS_S: Mapping[str, float] = {"1h": 3600.0, "1d": 86400.0}
SLICES = 12
MIN_REQUESTS = 200
"""Minimum requests in a window for its drift to be reported."""
MAX_MOVED_ROWS = 1 << 20
"""Size of a table in rows above which counting stops once its rows are in another order than in the bundle.
"""


class FeatureDriftDocument(Strict):
    """Drift of one feature in a window.

    index: its PSI minus the part explained by chance; None without lookups. unknown, expected: share of
    lookups whose value is not in the vocabulary, in the window and in the reference.
    """

    index: float | None
    unknown: float
    expected: float


class DriftDocument(Strict):
    """Drift of the features of one bundle.

    measured: whether the bundle has a reference. requests, features: by window; windows with too few requests
    are omitted.
    """

    version: str
    measured: bool
    requests: dict[str, int]
    features: dict[str, dict[str, FeatureDriftDocument]]


class FeatureDrift:
    """Measures the drift of one bundle's features. Used from one thread."""

    def __init__(self, version: str, encoder: Encoder, reference: FeatureReference | None) -> None:
        self._version, self._encoder = version, encoder
        self._reference = reference
        edges = {} if reference is None else {n: one.edges for n, one in reference.features.items()}
        self._binner = FeatureBinner(encoder, edges)
        self._windows = {
            name: SlidingWindow(span_s, lambda: FeatureCounts.empty(len(edges)), SLICES)
            for name, span_s in WINDOWS_S.items()
        }
        self._next_s = -np.inf
        self._moved: dict[str, tuple[I64, I64]] = {}

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> FeatureDrift:
        """Measures against the reference of a bundle; measures nothing if it has no readable one."""
        try:
            reference = read_reference(bundle.manifest.training)
        except ValidationError:
            reference = None
        return cls(bundle.manifest.version, bundle.encoder, reference)

    def record(self, batch: Batch, encoder: Encoder | None, now_s: float) -> None:
        """Counts an executed batch if one is due. encoder: the encoder of its rows; None: the bundle's."""
        if self._reference is None or now_s < self._next_s or not batch.rows:
            return
        self._next_s = now_s + SAMPLE_S
        batch = first_rows(batch, MAX_ROWS)
        if encoder is not None:
            moved = self._in_order(batch, encoder)
            if moved is None:
                return
            batch = moved
        counts = self._binner.count(batch)
        for window in self._windows.values():
            window.current(now_s).merge(counts)

    def document(self, now_s: float) -> DriftDocument:
        """Returns the drift in each window."""
        found: dict[str, dict[str, FeatureDriftDocument]] = {}
        requests = {}
        for name, window in self._windows.items():
            total = window.total(now_s)
            requests[name] = total.requests
            if self._reference is None or total.requests < MIN_REQUESTS:
                continue
            found[name] = {}
            every = (total.lookups + total.unknown).tolist()
            for i, (feature, lookups) in enumerate(zip(self._binner.features, every, strict=True)):
                reference = self._reference.features[feature]
                found[name][feature] = FeatureDriftDocument(
                    index=stability_index(reference, total, i),
                    unknown=float(total.unknown[i]) / lookups if lookups else 0.0,
                    expected=reference.unknown,
                )
        return DriftDocument(
            version=self._version,
            measured=self._reference is not None,
            requests=requests,
            features=found,
        )

    def _in_order(self, batch: Batch, encoder: Encoder) -> Batch | None:
        """Returns the batch with ranks in the bundle's order; None if a large table has another order."""
        orders: dict[str, I64] = {}
        for table, own in self._encoder.vocabularies.items():
            rank_of_id = encoder.vocabularies[table].rank_of_id
            if rank_of_id is own.rank_of_id:
                continue
            if own.rows > MAX_MOVED_ROWS:
                return None
            if table not in self._moved or self._moved[table][0] is not rank_of_id:
                self._moved[table] = rank_of_id, own.rank_of_id[ids_of_ranks(rank_of_id)]
            orders[table] = self._moved[table][1]
        if not orders:
            return batch
        schema = self._encoder.schema
        return replace(
            batch,
            context=_translated(batch.context, schema.context.singles, schema.context.bags, orders),
            candidate=_translated(batch.candidate, schema.candidate.singles, schema.candidate.bags, orders),
        )


def _translated(
    block: Block, singles: Sequence[Categorical], bags: Sequence[Categorical], orders: Mapping[str, I64]
) -> Block:
    ranks, values = block.ranks.copy(), block.bag_values.copy()
    for i, feature in enumerate(singles):
        if feature.table_name in orders:
            ranks[:, i] = orders[feature.table_name][ranks[:, i]]
    column = block.bag_columns()
    for i, feature in enumerate(bags):
        if feature.table_name in orders:
            mine = column == i
            values[mine] = orders[feature.table_name][values[mine]]
    return Block(block.dense, ranks, values, block.bag_offsets)


def first_rows(batch: Batch, rows: int) -> Batch:
    """Returns the first rows of a batch as a batch of its own."""
    if batch.rows <= rows:
        return batch
    some = np.arange(rows)
    if batch.context_row is None:
        return Batch(batch.context.take(some), batch.candidate.take(some))
    kept = batch.context_row[:rows]
    context = batch.context.take(np.arange(int(kept.max()) + 1))
    return Batch(context, batch.candidate.take(some), kept, min(batch.plain_rows, rows))


def drifts_of(bundles: Sequence[Bundle]) -> list[FeatureDrift]:
    """Returns the drift of each path's bundle; paths of one version share it."""
    by_version: dict[str, FeatureDrift] = {}
    for bundle in bundles:
        version = bundle.manifest.version
        if version not in by_version:
            by_version[version] = FeatureDrift.from_bundle(bundle)
    return [by_version[bundle.manifest.version] for bundle in bundles]
