"""The tracker's counts against full counting, on random streams, some of which drift in the middle."""

from __future__ import annotations

import os
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.cli.train.train_workers import local_environment
from polyrec.models.training.workers.group import WorkerGroup
from polyrec.models.training.workers.popularity import DECAY, PopularityTracker, summary

ROWS, LOOKUPS, MOST = 5000, 40_000, 200


def zipf(random: np.random.Generator, order: np.ndarray, size: int) -> np.ndarray:
    weights = np.arange(1, order.size + 1) ** -1.05
    found: np.ndarray = random.choice(order, size, p=weights / weights.sum())
    return found


@given(st.lists(st.lists(st.integers(0, 60), max_size=80), max_size=6), st.integers(1, 40))
def test_a_count_is_too_small_by_a_known_bound_at_most(parts: list[list[int]], capacity: int) -> None:
    rows, counts = np.zeros(0, np.int64), np.zeros(0, np.float32)
    for part in parts:
        more = np.array(part, np.int64)
        merged = np.concatenate((counts, np.ones(more.size, np.float32)))
        rows, counts = summary(np.concatenate((rows, more)), merged, capacity)
    true = np.bincount(np.array([*chain(*parts)], np.int64), minlength=61)
    estimate = np.zeros(61)
    estimate[rows] = counts
    assert rows.size <= capacity
    assert np.all(np.diff(rows) > 0)
    assert np.all(estimate <= true)
    assert np.all(true - estimate <= true.sum() / (capacity + 1))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> WorkerGroup:
    for name, value in (local_environment(1) | {"RANK": "0"}).items():
        monkeypatch.setitem(os.environ, name, value)
    return WorkerGroup.join()


def test_popular_rows_are_those_of_full_counting_also_after_a_drift(alone: WorkerGroup) -> None:
    random = np.random.default_rng(0)
    tracker, full = PopularityTracker(MOST, ROWS), np.zeros(ROWS)
    with alone:
        for order in (random.permutation(ROWS), random.permutation(ROWS)):
            for _ in range(4):
                rows = zipf(random, order, LOOKUPS)
                for part in np.array_split(rows, 7):
                    tracker.add(part)
                full += np.bincount(rows, minlength=ROWS)
                chosen = tracker.choose(alone)
                best = np.argsort(-full, kind="stable")[:MOST]
                assert chosen.size <= MOST
                assert full[chosen].sum() > 0.97 * full[best].sum()
                full *= DECAY
            # those of the order that holds now
            assert np.isin(order[: MOST // 2], chosen).mean() > 0.95


def test_few_rows_are_all_counted_exactly(alone: WorkerGroup) -> None:
    tracker = PopularityTracker(50, ROWS)
    with alone:
        tracker.add(np.repeat(np.arange(40), np.arange(40)))
        assert tracker.choose(alone).tolist() == list(range(1, 40))
    assert tracker.counts.tolist() == [n * DECAY for n in range(1, 40)]


@pytest.mark.parametrize("total", [2**31, 2**31 + 1, 2**40])
def test_rows_are_chosen_by_their_whole_number(alone: WorkerGroup, total: int) -> None:
    popular = np.array([3, total // 2, total - 1])
    tracker = PopularityTracker(2, total)
    with alone:
        tracker.add(np.repeat(popular, [1, 5, 7]))
        assert tracker.choose(alone).tolist() == popular[1:].tolist()


def test_choices_come_twice_as_late_each_time_until_they_are_regular() -> None:
    tracker = PopularityTracker(1, ROWS)
    assert [n for n in range(800) if tracker.is_choice_step(n)] == [8, 16, 32, 64, 128, 256, 512, 768]
