from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.training.row_order import epoch

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(1, 60), st.integers(1, 20), st.booleans())
def test_every_row_is_drawn_once_an_epoch(seed: int, count: int, batch_rows: int, by_request: bool) -> None:
    random = np.random.default_rng(seed)
    rows = random.permutation(100)[:count]
    group = random.integers(-3, 9, 100) if by_request else None
    batches = list(epoch(rows, group, batch_rows, random))
    assert sorted(np.concatenate(batches)) == sorted(rows)
    assert all((np.diff(b) > 0).all() for b in batches)
    assert 0 < len(batches) <= -(-count // batch_rows)


@given(SEEDS, st.integers(1, 60), st.integers(1, 20))
def test_requests_are_drawn_whole(seed: int, count: int, batch_rows: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.permutation(100)[:count]
    group = random.integers(0, 9, 100)
    batches = list(epoch(rows, group, batch_rows, random))
    requests = [set(group[b].tolist()) for b in batches]
    assert sum(map(len, requests)) == len(set(group[rows].tolist()))
    largest = int(np.unique(group[rows], return_counts=True)[1].max())
    assert all(b.size < batch_rows + largest for b in batches)


def test_requests_of_one_row_are_rows() -> None:
    sizes = [b.size for b in epoch(np.arange(10), np.arange(10), 4, np.random.default_rng(0))]
    assert sizes == [4, 4, 2]


def test_each_epoch_and_seed_has_another_order() -> None:
    group = np.arange(300) // 5
    random = np.random.default_rng(1)
    first, second = (np.concatenate(list(epoch(np.arange(300), group, 50, random))) for _ in range(2))
    again = np.concatenate(list(epoch(np.arange(300), group, 50, np.random.default_rng(1))))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)


def test_drawing_rows_is_a_permutation_cut_in_batches() -> None:
    order = np.random.default_rng(3).permutation(np.arange(10, 30))
    batches = list(epoch(np.arange(10, 30), None, 6, np.random.default_rng(3)))
    assert [b.tolist() for b in batches] == [sorted(order[i : i + 6].tolist()) for i in range(0, 20, 6)]
