"""The population stability index: its value, its bias under equality, and its bound with few requests."""

from __future__ import annotations

import numpy as np
import pytest

from polyrec.planner.rollout.score_shift import F32, ScoreCounts, ScoreShift, bin_edges, score_shift


def requests_of(
    random: np.random.Generator, requests: int, rows: int = 20, shift: float = 0.0, alike: float = 0.0
) -> list[F32]:
    """Scores of requests, normal; alike: deviation of what the rows of a request have in common."""
    common = alike * random.normal(size=(requests, 1))
    return list((random.normal(shift, 1, (requests, rows)) + common).astype(np.float32))


def counted(scores: list[F32], edges: np.ndarray) -> ScoreCounts:
    counts = ScoreCounts.empty(10)
    counts.add(scores, edges)
    return counts


def shift_between(stable: list[F32], canary: list[F32]):  # type: ignore[no-untyped-def]
    edges = bin_edges(np.concatenate(stable[:100]))
    found = score_shift(counted(stable, edges), counted(canary, edges))
    assert found is not None
    return found


def test_psi_of_large_samples_is_the_distributions_own() -> None:
    random = np.random.default_rng(1)
    shift = shift_between(requests_of(random, 20_000), requests_of(random, 20_000, shift=0.5))
    # of two normal distributions whose means are d apart, without bins: d^2
    assert 0.2 < shift.psi < 0.25
    assert shift.low(4) > 0.2


@pytest.mark.parametrize("alike", [0.0, 1.0])
def test_equal_versions_are_not_called_different(alike: float) -> None:
    random = np.random.default_rng(2)
    found = [
        shift_between(requests_of(random, 400, alike=alike), requests_of(random, 60, alike=alike))
        for _ in range(400)
    ]
    assert np.mean([f.psi for f in found]) == pytest.approx(np.mean([f.bias for f in found]), rel=0.25)
    assert np.std([f.psi for f in found]) < 1.5 * np.mean([f.deviation for f in found])
    assert max(f.low(4) for f in found) < 0.1
    independent = 9 * (1 / (400 * 20) + 1 / (60 * 20))
    assert np.mean([f.psi for f in found]) > (2 if alike else 0.8) * independent


def test_a_shift_is_found_although_rows_of_a_request_are_alike() -> None:
    random = np.random.default_rng(3)
    found = [
        shift_between(requests_of(random, 2000, alike=0.5), requests_of(random, 500, shift=0.8, alike=0.5))
        for _ in range(20)
    ]
    assert min(f.low(4) for f in found) > 0.1


def test_lower_bounds_are_below_the_index_of_endless_samples() -> None:
    random = np.random.default_rng(4)
    edges = bin_edges(random.normal(size=10**6).astype(np.float32))
    own = score_shift(
        counted(requests_of(random, 20_000, 50), edges), counted(requests_of(random, 20_000, 50, 0.4), edges)
    )
    assert own is not None
    above = below = 0
    for _ in range(300):
        of = requests_of(random, 300), requests_of(random, 100, shift=0.4)
        found = score_shift(*(counted(part, edges) for part in of))
        assert found is not None
        above += found.low(2) > own.psi
        below += found.high(2) < own.psi
    assert above <= 15
    assert below <= 15


@pytest.mark.parametrize(("stable", "canary"), [(100, 1000), (1000, 100)])
def test_the_deviation_of_a_real_shift_is_the_spread_of_samples(stable: int, canary: int) -> None:
    random = np.random.default_rng(5)
    edges = bin_edges(random.normal(size=10**6).astype(np.float32))
    found = []
    for _ in range(400):
        of = requests_of(random, stable), requests_of(random, canary, shift=0.8)
        shift = score_shift(*(counted(part, edges) for part in of))
        assert shift is not None
        found.append(shift)
    assert np.mean([f.deviation for f in found]) == pytest.approx(np.std([f.psi for f in found]), rel=0.15)


def test_bounds_of_an_index_below_its_bias_hold_zero() -> None:
    shift = ScoreShift(psi=0.01, bias=0.02, deviation=0.005)
    assert (shift.low(2), shift.high(2)) == (0.0, 0.01)
    shift = ScoreShift(psi=0.1, bias=0.02, deviation=0.005)
    assert (shift.low(2), shift.high(2)) == pytest.approx((0.07, 0.09))


def test_merged_counts_are_those_of_all_requests() -> None:
    random = np.random.default_rng(6)
    one, other = requests_of(random, 30), requests_of(random, 50, rows=7)
    edges = bin_edges(np.concatenate(one))
    merged, whole = counted(one, edges), counted([*one, *other], edges)
    merged.merge(counted(other, edges))
    assert merged.counts.sum() == 30 * 20 + 50 * 7
    np.testing.assert_array_equal(merged.counts, whole.counts)
    np.testing.assert_array_equal(merged.products, whole.products)
    assert merged.requests == whole.requests == 80


def test_without_requests_there_is_no_index() -> None:
    assert score_shift(ScoreCounts.empty(10), ScoreCounts.empty(10)) is None


def test_scores_of_one_value_give_no_shift() -> None:
    scores = [np.full(3, 0.5, np.float32)] * 200
    shift = shift_between(scores, scores)
    assert shift.psi == 0
