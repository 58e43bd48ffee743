from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from polyrec.server.metrics.instruments import Counter, Family, Registry
from polyrec.server.metrics.metrics import REQUEST_EDGES_S

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SHAPES = ["lognormal", "narrow", "uniform", "exponential", "two humps"]


def interpolated(counts: list[int], q: float) -> float:
    """Prometheus's histogram_quantile."""
    rank, below = q * sum(counts), 0
    for i, own in enumerate(counts):
        if own and below + own >= rank:
            low = REQUEST_EDGES_S[i - 1] if i else 0.0
            return low + (REQUEST_EDGES_S[i] - low) * (rank - below) / own
        below += own
    raise AssertionError("empty")


def drawn(shape: str, at_s: float, random: np.random.Generator) -> np.ndarray:
    n = 20_000
    if shape == "lognormal":
        return random.lognormal(math.log(at_s), 0.5, n)
    if shape == "narrow":
        return random.lognormal(math.log(at_s), 0.05, n)
    if shape == "uniform":
        return random.uniform(0.5, 1.5, n) * at_s
    if shape == "exponential":
        return 0.5 * at_s + random.exponential(at_s, n)
    # two paths of different speed
    humps = np.concatenate([random.normal(1, 0.05, n // 2 - 100), random.normal(2, 0.1, n // 2 + 100)])
    return humps * at_s


@given(shape=st.sampled_from(SHAPES), at_ms=st.floats(1, 25), seed=st.integers(0, 2**32 - 1))
def test_p50_and_p99_read_off_the_buckets_are_within_five_percent(
    shape: str, at_ms: float, seed: int
) -> None:
    seconds = drawn(shape, at_ms / 1e3, np.random.default_rng(seed))
    family = Registry().histogram("polyrec_request_seconds", "Time.", REQUEST_EDGES_S)
    for value in seconds.tolist():
        family.only.observe(value)
    for q in (0.5, 0.99):
        exact = float(np.quantile(seconds, q))
        if 0.0005 <= exact <= 0.1:
            assert interpolated(family.only.counts, q) == pytest.approx(exact, rel=0.05)


def test_latency_targets_are_edges() -> None:
    targets = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.06, 0.08, 0.1, 0.2, 0.5, 1.0)
    assert set(targets) <= set(REQUEST_EDGES_S)
    assert len(REQUEST_EDGES_S) <= 100, "each is a series for every endpoint, path and outcome"
    fine = [edge for edge in REQUEST_EDGES_S if 0.0005 <= edge <= 0.1]
    assert max(b / a for a, b in pairwise(fine)) <= 1.082


@given(st.lists(st.floats(0, 20), max_size=50))
def test_a_histogram_counts_up_to_each_edge_inclusive(values: list[float]) -> None:
    registry = Registry()
    family = registry.histogram("polyrec_a_seconds", "Time.", (0.1, 1, 10), "path")
    for value in values:
        family.labels("x").observe(value)
    if values:
        together = registry.histogram("polyrec_b_seconds", "Time.", (0.1, 1, 10))
        together.only.observe_all(values)
        assert (together.only.counts, together.only.sum) == (
            family.labels("x").counts,
            family.labels("x").sum,
        )
        registry.families.pop()
    else:
        assert registry.text() == "\n"
        return
    (parsed,) = text_string_to_metric_families(registry.text())
    found = {(s.name, s.labels.get("le")): s.value for s in parsed.samples}
    for edge in (0.1, 1.0, 10.0):
        assert found["polyrec_a_seconds_bucket", f"{edge:g}"] == sum(v <= edge for v in values)
    assert found["polyrec_a_seconds_bucket", "+Inf"] == len(values)
    assert found["polyrec_a_seconds_count", None] == len(values)
    assert found["polyrec_a_seconds_sum", None] == pytest.approx(sum(values))


@given(TEXT, TEXT)
def test_any_label_survives_the_text(one: str, other: str) -> None:
    registry = Registry()
    family = registry.counter("polyrec_a", "Some.", "x", "y")
    family.labels(one, other).inc(3)
    (parsed,) = text_string_to_metric_families(registry.text())
    (sample,) = parsed.samples
    assert sample.labels == {"x": one, "y": other}
    assert (parsed.type, sample.name, sample.value) == ("counter", "polyrec_a_total", 3)


def test_cleared_children_are_not_exposed() -> None:
    registry = Registry()
    up = registry.gauge("polyrec_up", "Up.", "lane")
    up.labels("a").set(True)
    assert 'polyrec_up{lane="a"} 1.0\n' in registry.text()
    up.clear()
    assert registry.text() == "\n"


def test_a_family_that_makes_no_sense_is_rejected() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Registry().histogram("polyrec_a", "Some.", (1, 0.5))
    with pytest.raises(ValueError, match="one line"):
        Family(Counter, "counter", "polyrec_a", "two\nlines")
    with pytest.raises(ValueError, match="zip"):
        Registry().counter("polyrec_a", "Some.", "x").labels("1", "2")
