"""The expected loss: its value if the stable version is right, and its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from polyrec.models.evaluation.metrics import log_loss
from polyrec.planner.rollout.expected_loss import ExpectedLoss, PairRecords, PairSums, expected_loss
from polyrec.planner.rollout.score_shift import F32


def pairs_of(random: np.random.Generator, requests: int, noise: float) -> list[tuple[F32, F32]]:
    """Answers to requests of 20 rows, whose logits differ by normal noise, in part common to a request."""
    logits = random.normal(-2, 1, (requests, 20))
    other = logits + noise * (random.normal(size=(requests, 20)) + random.normal(size=(requests, 1)))
    stable, canary = (1 / (1 + np.exp(-of)) for of in (logits, other))
    return list(zip(stable.astype(np.float32), canary.astype(np.float32), strict=True))


def loss_of(pairs: list[tuple[F32, F32]]) -> ExpectedLoss:
    sums = PairSums()
    sums.add(PairRecords(pairs))
    found = expected_loss(sums)
    assert found is not None
    return found


def test_the_loss_is_that_on_labels_which_the_stable_version_predicts() -> None:
    random = np.random.default_rng(1)
    pairs = pairs_of(random, 20_000, 0.7)
    stable, canary = (np.concatenate(of) for of in zip(*pairs, strict=True))
    labels = (random.random(stable.size) < stable).astype(np.float32)
    base = float(labels.mean())
    entropy = -base * np.log(base) - (1 - base) * np.log(1 - base)
    lost = (log_loss(canary, labels) - log_loss(stable, labels)) / entropy
    assert loss_of(pairs).value == pytest.approx(lost, rel=0.05)


def test_equal_versions_lose_nothing_whatever_the_sample() -> None:
    loss = loss_of([(p, p) for p, _ in pairs_of(np.random.default_rng(2), 5, 0.0)])
    assert (loss.value, loss.deviation) == (0, 0)


def test_bounds_hold_the_loss_of_endless_samples() -> None:
    random = np.random.default_rng(3)
    own = loss_of(pairs_of(random, 50_000, 0.5)).value
    found = [loss_of(pairs_of(random, 200, 0.5)) for _ in range(300)]
    assert sum(loss.low(4) > own for loss in found) == 0
    assert sum(not loss.low(2) <= own <= loss.high(2) for loss in found) < 30


def test_merged_sums_are_those_of_all_requests() -> None:
    pairs = pairs_of(np.random.default_rng(4), 50, 0.5)
    parts = PairSums(), PairSums()
    parts[0].add(PairRecords(pairs[:20], failed=2))
    parts[1].add(PairRecords(pairs[20:]))
    parts[0].merge(parts[1])
    whole = expected_loss(parts[0])
    assert whole is not None
    assert whole.value == pytest.approx(loss_of(pairs).value)
    assert whole.deviation == pytest.approx(loss_of(pairs).deviation)
    assert (parts[0].requests, parts[0].failed) == (50, 2)


def test_scores_that_are_no_numbers_are_failures_and_extremes_are_finite() -> None:
    sums = PairSums()
    ones, no_number = np.ones(3, np.float32), np.full(3, np.nan, np.float32)
    records = PairRecords([(ones, no_number), (ones, ones), (ones, np.zeros(3, np.float32))], failed=2)
    sums.add(records)
    loss = expected_loss(sums)
    assert (sums.requests, sums.failed) == (2, 3)
    assert (len(records.pairs), records.failed) == (2, 3)  # as the metrics count them
    assert loss is not None
    assert np.isfinite(loss.value)


def test_one_request_gives_no_expected_loss() -> None:
    sums = PairSums()
    assert expected_loss(sums) is None
    (pair,) = pairs_of(np.random.default_rng(5), 1, 0.5)
    sums.add(PairRecords([pair]))
    assert expected_loss(sums) is None
    sums.add(PairRecords([pair]))
    assert expected_loss(sums) is not None
