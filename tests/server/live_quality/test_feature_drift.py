from __future__ import annotations

from collections.abc import Callable

import numpy as np
import orjson
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.evaluation.feature_drift import FeatureCounts
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.planner.plan import Plan
from polyrec.planner.rollout.window import SlidingWindow
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.live_quality.feature_drift import (
    MIN_REQUESTS,
    SAMPLE_S,
    SLICES,
    FeatureDrift,
    drifts_of,
    first_rows,
)
from polyrec.server.prediction_log.writer import LIMITS
from tests.server.conftest import Client, Request


def batch_of(bundle: Bundle, requests: list[Request], encoder: Encoder | None = None) -> Batch:
    decoder = JsonDecoder(bundle.manifest.schema_, LIMITS)
    bodies = [orjson.dumps({"context": one.context, "candidates": one.candidates}) for one in requests]
    return Batch.concat([decoder.rank(body).rows.encode(encoder or bundle.encoder) for body in bodies])


def counts_of(requests: int) -> FeatureCounts:
    counts = FeatureCounts.empty(1)
    counts.requests = requests
    return counts


def test_a_window_has_what_was_counted_within_its_span() -> None:
    window = SlidingWindow(120.0, lambda: FeatureCounts.empty(1), SLICES)
    random = np.random.default_rng(0)
    at = np.cumsum(random.exponential(4.0, 300))
    for i, now_s in enumerate(at.tolist()):
        window.current(now_s).merge(counts_of(1))
        total = window.total(now_s).requests
        # whole slices leave
        assert (at[: i + 1] > now_s - 120.0 + 120.0 / SLICES).sum() <= total
        assert total <= (at[: i + 1] > now_s - 120.0).sum()
        assert len(window._slices) <= SLICES + 1
    assert window.total(at[-1] + 120.0).requests == 0


def test_one_batch_in_a_while_is_counted(bundle: Bundle, requests: list[Request]) -> None:
    drift = FeatureDrift.from_bundle(bundle)
    batch = batch_of(bundle, requests[:3])
    for step in range(100):
        drift.record(batch, None, step * SAMPLE_S / 10)
    assert drift.document(10.0).requests == {"1h": 30, "1d": 30}


def test_served_test_rows_have_not_drifted_and_others_have(bundle: Bundle, requests: list[Request]) -> None:
    drift, shifted = FeatureDrift.from_bundle(bundle), FeatureDrift.from_bundle(bundle)
    for step in range(MIN_REQUESTS + 1):
        assert not drift.document(2 * 2 * step * SAMPLE_S).features or step >= MIN_REQUESTS
        drift.record(batch_of(bundle, [requests[step % len(requests)]]), None, 2 * step * SAMPLE_S)
        shifted.record(batch_of(bundle, requests[:1]), None, 2 * step * SAMPLE_S)
    document = drift.document(2 * step * SAMPLE_S)
    assert document.measured
    found = document.features["1h"]
    alike = shifted.document(2 * 2 * step * SAMPLE_S).features["1h"]
    # the same few requests again and again are not quite the test rows
    assert np.median([f.index or 0 for f in found.values()]) < 0.1
    assert np.median([f.index or 0 for f in alike.values()]) > 0.5


def test_rows_that_were_reordered_are_counted_by_their_ids(bundle: Bundle, requests: list[Request]) -> None:
    random = np.random.default_rng(5)
    own = bundle.encoder
    orders = {t: v.reordered(random.permutation(v.rows), v.counts) for t, v in own.vocabularies.items()}
    moved = Encoder(own.schema, orders, own.standards)
    here, there = FeatureDrift.from_bundle(bundle), FeatureDrift.from_bundle(bundle)
    for step in range(MIN_REQUESTS):
        some = [requests[step % len(requests)]]
        here.record(batch_of(bundle, some), None, 2 * step * SAMPLE_S)
        there.record(batch_of(bundle, some, moved), moved, 2 * step * SAMPLE_S)
    assert here.document(99.0) == there.document(99.0)
    assert here.document(99.0).features["1d"]


@pytest.mark.parametrize("rows", [1, 5, 24, 10_000])
def test_the_first_rows_of_a_batch_predict_the_same(
    bundle: Bundle, requests: list[Request], rows: int
) -> None:
    runtime = open_runtime("torch", bundle)
    for batch in (batch_of(bundle, requests[:4]), batch_of(bundle, requests[:4]).exploded()):
        some = first_rows(batch, rows)
        assert some.rows == min(rows, batch.rows)
        expected = runtime.predict(batch)[:rows].copy()
        np.testing.assert_allclose(runtime.predict(some), expected, atol=1e-6)


def test_a_bundle_without_a_reference_is_not_measured(bundle: Bundle, requests: list[Request]) -> None:
    drift = FeatureDrift(bundle.manifest.version, bundle.encoder, None)
    drift.record(batch_of(bundle, requests[:2]), None, 0.0)
    document = drift.document(1.0)
    assert not document.measured
    assert document.features == {}


def test_paths_of_one_bundle_are_measured_together(bundle: Bundle) -> None:
    first, second = drifts_of([bundle, bundle])
    assert first is second


def test_a_server_shows_the_drift_of_its_features(
    plan: Plan, client_of: Callable[[Plan], Client], requests: list[Request]
) -> None:
    client = client_of(plan)
    client.predict(requests[0])
    version = client.send("GET", "/v1/status").json()["feature_drift"][0]["version"]
    (found,) = client.send("GET", "/v1/status").json()["feature_drift"]
    assert found["measured"]
    assert found["requests"]["1h"] >= 1
    assert client.metric("polyrec_feature_requests", version=version, window="1h") >= 1
