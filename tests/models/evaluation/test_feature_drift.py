from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, fit_splitter
from polyrec.models.evaluation.feature_drift import (
    FEATURE_REFERENCE,
    MAX_BINS,
    FeatureBinner,
    FeatureBins,
    FeatureCounts,
    FeatureReference,
    keep_reference,
    read_reference,
    reference_of,
    stability_index,
)
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES
from tests.models.random_batches import random_ids


@pytest.fixture(scope="module")
def reference(bundle: Bundle) -> FeatureReference:
    found = read_reference(bundle.manifest.training)
    assert found is not None
    return found


def edges_of(reference: FeatureReference) -> dict[str, tuple[float, ...]]:
    return {name: one.edges for name, one in reference.features.items()}


def random_batch(bundle: Bundle, contexts: int, random: np.random.Generator) -> Batch:
    """Rankings of 1 to 9 rows."""
    context_row = np.repeat(np.arange(contexts), random.integers(1, 10, contexts))
    plain = random_ids(bundle.encoder, context_row.size, random)
    first = np.searchsorted(context_row, np.arange(contexts))
    return Batch(plain.context.take(first), plain.candidate, context_row)


def by_hand(
    batch: Batch, encoder: Encoder, edges: dict[str, tuple[float, ...]]
) -> dict[str, list[dict[int, int]]]:
    """For each feature and request, how many lookups are in each bin; -1 counts unknown values."""
    assert batch.context_row is not None
    plain = batch.exploded()
    found: dict[str, list[dict[int, int]]] = {}
    for role, block in zip(ROLES, (plain.context, plain.candidate), strict=True):
        layout = encoder.schema.layout(role)
        columns: dict[str, list[list[float]]] = {}
        for i, number in enumerate(layout.dense):
            columns[number.name] = [[float(x)] for x in block.dense[:, i]]
        for i, single in enumerate(layout.singles):
            columns[single.name] = [[int(x)] for x in block.ranks[:, i]]
        for i, bag in enumerate(layout.bags):
            at = [r * block.bags + i for r in range(block.rows)]
            columns[bag.name] = [
                [int(x) for x in block.bag_values[block.bag_offsets[k] : block.bag_offsets[k + 1]]]
                for k in at
            ]
        vocabulary = {f.name: encoder.vocabulary(f) for f in layout.categorical}
        for name, values in columns.items():
            if name not in edges:
                continue
            own = [defaultdict[int, int](int) for _ in range(batch.context.rows)]
            for request, several in zip(batch.context_row.tolist(), values, strict=True):
                for value in several:
                    place = sum(value >= edge for edge in edges[name])
                    if name in vocabulary and value == vocabulary[name].oov_rank:
                        place = -1
                    elif name in vocabulary and value == vocabulary[name].missing_rank:
                        place = len(edges[name]) + 1
                    own[request][place] += 1
            found[name] = [dict(one) for one in own]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_look_ups_are_counted_like_by_hand(bundle: Bundle, reference: FeatureReference, seed: int) -> None:
    batch = random_batch(bundle, 17, np.random.default_rng(seed))
    binner = FeatureBinner(bundle.encoder, edges_of(reference))
    counts = binner.count(batch)
    expected = by_hand(batch, bundle.encoder, edges_of(reference))
    assert set(binner.features) == set(expected) == set(reference.features)
    assert (counts.rows, counts.requests) == (batch.rows, 17)
    for i, name in enumerate(binner.features):
        table = np.zeros((17, MAX_BINS))
        for request, bins in enumerate(expected[name]):
            for place, number in bins.items():
                if place >= 0:
                    table[request, place] = number
        each = table.sum(1)
        np.testing.assert_array_equal(counts.counts[i], table.sum(0), name)
        np.testing.assert_array_equal(counts.squares[i], (table**2).sum(0), name)
        np.testing.assert_array_equal(counts.crossed[i], (table * each[:, None]).sum(0), name)
        assert counts.squared[i] == (each**2).sum()
        assert counts.unknown[i] == sum(bins.get(-1, 0) for bins in expected[name])


def test_shared_and_repeated_contexts_give_the_same_counts(
    bundle: Bundle, reference: FeatureReference
) -> None:
    batch = random_batch(bundle, 9, np.random.default_rng(1))
    binner = FeatureBinner(bundle.encoder, edges_of(reference))
    shared, repeated = binner.count(batch), binner.count(batch.exploded(), batch.context_row)
    for name in ("counts", "squares", "crossed", "squared", "unknown"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(repeated, name))


@pytest.fixture(scope="module")
def rows(bundle: Bundle, clicks: Path) -> EncodedRows:
    reader = open_data(clicks, bundle.manifest.schema_)
    return encode(reader, bundle.encoder, fit_splitter(reader, bundle.manifest.schema_), (TRAIN, TEST))


def test_a_bundle_has_the_shares_of_its_test_rows(
    bundle: Bundle, reference: FeatureReference, rows: EncodedRows
) -> None:
    test = rows.select(TEST)
    assert reference.rows == test.size
    counts = FeatureBinner(bundle.encoder, edges_of(reference)).count(rows.batch(test))
    for i, one in enumerate(reference.features.values()):
        lookups = counts.lookups[i]
        np.testing.assert_allclose(counts.counts[i, : len(one.shares)] / lookups, one.shares)
        assert one.unknown == pytest.approx(counts.unknown[i] / (lookups + counts.unknown[i]))
        assert max(one.shares) <= 1
        assert sum(one.shares) == pytest.approx(1)


def drawn(shares: np.ndarray[Any, Any], requests: int, alike: int, seed: int) -> FeatureCounts:
    """Lookups of one feature: requests of `alike` rows, all in one bin."""
    places = np.random.default_rng(seed).choice(shares.size, requests, p=shares)
    counts = FeatureCounts.empty(1)
    hits = np.bincount(places, minlength=MAX_BINS).astype(float)
    counts.counts[0] = alike * hits
    counts.squares[0] = counts.crossed[0] = alike**2 * hits
    counts.squared[0] = alike**2 * requests
    counts.requests, counts.rows = requests, alike * requests
    return counts


@pytest.mark.parametrize("alike", [1, 25])
def test_the_index_is_near_0_without_drift_however_alike_a_requests_rows_are(alike: int) -> None:
    shares = np.full(10, 0.1)
    known = FeatureBins(edges=tuple(range(9)), shares=tuple(shares), unknown=0, independent=1e5)
    found = [stability_index(known, drawn(shares, 300, alike, seed), 0) for seed in range(200)]
    assert max(one for one in found if one is not None) < 0.1
    shifted = np.linspace(0.01, 0.19, 10)
    drifted = stability_index(known, drawn(shifted, 300, alike, 0), 0)
    assert drifted is not None
    assert drifted > 0.25


def test_a_feature_that_had_one_value_at_training_drifts_only_if_others_come() -> None:
    alone = FeatureBins(edges=(), shares=(1.0, 0.0), unknown=0.0, independent=0.0)
    same = drawn(np.array([1.0, 0.0]), requests=200, alike=25, seed=0)
    assert stability_index(alone, same, 0) == pytest.approx(0.0, abs=0.02)
    missing = drawn(np.array([0.7, 0.3]), requests=200, alike=25, seed=0)
    found = stability_index(alone, missing, 0)
    assert found is not None
    assert found > 0.25


def test_a_value_of_nine_tenths_has_a_bin_apart_from_the_others(bundle: Bundle, rows: EncodedRows) -> None:
    found = reference_of(bundle.encoder, rows, np.arange(rows.rows))
    assert found is not None
    binned = {name: one for name, one in found.features.items() if one.edges}
    batch = rows.batch(np.arange(rows.rows)).exploded()
    for role, block in zip(ROLES, (batch.context, batch.candidate), strict=True):
        layout = bundle.encoder.schema.layout(role)
        for i, single in enumerate(layout.singles):
            v = bundle.encoder.vocabulary(single)
            own = block.ranks[:, i]
            own = own[(own != v.missing_rank) & (own != v.oov_rank)]
            assert (single.name in binned) == (np.unique(own).size > 1), single.name


def test_a_derived_bundle_keeps_the_reference_and_others_have_none(
    bundle: Bundle, reference: FeatureReference
) -> None:
    training = bundle.manifest.training
    assert read_reference(keep_reference(training)) == reference
    assert keep_reference({}) == {}
    assert read_reference({}) is None
    assert read_reference({FEATURE_REFERENCE: {**training[FEATURE_REFERENCE], "version": 2}}) is None
    broken = reference.model_dump()
    first = next(iter(broken["features"].values()))
    first["shares"] = first["shares"][:1] if len(first["edges"]) else first["shares"] * 3
    with pytest.raises(ValueError, match="shares"):
        read_reference({FEATURE_REFERENCE: broken})


def test_no_rows_have_no_reference(bundle: Bundle, rows: EncodedRows) -> None:
    assert reference_of(bundle.encoder, rows, np.empty(0, np.int64)) is None
