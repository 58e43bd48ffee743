from __future__ import annotations

import math
from pathlib import Path

import httpx
import numpy as np
import pytest

from polyrec.loadtest.drivers.server_pages import (
    MetricSamples,
    path_qualities,
    read_metrics,
    request_buckets,
)
from tests.forking import start

PAGE = """
# TYPE polyrec_request_seconds histogram
polyrec_request_seconds_bucket{endpoint="rank",path="a",outcome="ok",le="0.01"} 6
polyrec_request_seconds_bucket{endpoint="rank",path="a",outcome="ok",le="0.02"} 8
polyrec_request_seconds_bucket{endpoint="rank",path="a",outcome="ok",le="+Inf"} 8
polyrec_request_seconds_bucket{endpoint="rank",path="b",outcome="ok",le="0.01"} 0
polyrec_request_seconds_bucket{endpoint="rank",path="b",outcome="ok",le="0.02"} 1
polyrec_request_seconds_bucket{endpoint="rank",path="b",outcome="ok",le="+Inf"} 2
polyrec_request_seconds_bucket{endpoint="predict",path="a",outcome="ok",le="+Inf"} 50
polyrec_request_seconds_count{endpoint="rank",path="a",outcome="ok"} 8
"""


def test_series_of_a_histogram_are_added_and_interpolated() -> None:
    buckets = MetricSamples(PAGE).buckets("polyrec_request_seconds", endpoint="rank")
    assert buckets.counts.tolist() == [6, 3, 1]
    assert buckets.total == 10
    assert buckets.quantile(0.3) == pytest.approx(0.005)
    assert buckets.quantile(0.75) == pytest.approx(0.015)
    # beyond the last edge nothing more is known
    assert buckets.quantile(1.0) == pytest.approx(0.02)
    later = MetricSamples(PAGE.replace("} 6", "} 7")).buckets("polyrec_request_seconds", endpoint="rank")
    assert (later - buckets).counts.tolist() == [1, -1, 0]
    nothing = MetricSamples("").buckets("polyrec_request_seconds")
    assert (buckets - nothing).counts.tolist() == buckets.counts.tolist()
    assert MetricSamples(PAGE).buckets("polyrec_request_seconds", path="b").total == 2


def test_quantile_without_observations_is_nan() -> None:
    assert math.isnan(MetricSamples("").buckets("polyrec_request_seconds").quantile(0.5))


def test_a_total_is_of_the_series_that_carry_the_labels() -> None:
    found = MetricSamples(PAGE + "polyrec_ready 1.0\n")
    assert found.total("polyrec_request_seconds_bucket", endpoint="rank", le="0.02") == 9
    assert found.total("polyrec_request_seconds_bucket", endpoint="rank", path="c") == 0
    assert found.total("polyrec_ready") == 1
    assert found.total("polyrec_request_seconds") == 0


def test_counters_and_qualities_of_a_live_server_are_read(bundle_dir: Path) -> None:
    with start({"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000}) as server:
        body = {"context": {}, "candidates": {"item": ["1", "2"]}}
        for _ in range(5):
            assert httpx.post(f"{server.url}/v1/rank", json=body).status_code == 200
        buckets = request_buckets(server.url, endpoint="rank")
        assert buckets.total == 5
        assert np.isfinite(buckets.quantile(0.99))
        assert read_metrics(server.url).total("polyrec_request_seconds_count", endpoint="rank") == 5
        quality, accuracy = path_qualities(server.url)
    assert quality["table@cpu"] < 0.5 < accuracy["table@cpu"] < 1
