from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.measure.profile.schedule import MAX_SAMPLES, ROUNDS, batches, blocks, evicted_sizes, ladder
from polyrec.planner.profile import ProfileError


@given(st.integers(1, 100_000))
def test_the_ladder_climbs_from_one_row_to_the_largest(largest: int) -> None:
    fitted, unseen = ladder(largest)
    assert fitted[0] == 1
    assert fitted[-1] == largest
    assert fitted == sorted(set(fitted))
    assert not set(fitted) & set(unseen)
    assert all(1 < rows < largest for rows in unseen)
    assert {1, largest} <= set(evicted_sizes(largest)) <= set(fitted)


def test_test_sizes_are_between_fitted_sizes() -> None:
    assert ladder(64) == ([1, 2, 4, 8, 16, 32, 64], [3, 6, 11, 23, 45])


def test_a_batch_without_rows_is_rejected() -> None:
    with pytest.raises(ProfileError, match="at least 1 row, not 0"):
        ladder(0)


@given(st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=24), st.floats(0.01, 100.0))
def test_every_size_has_a_batch_a_round_and_the_rest_keeps_to_the_budget(
    batch_s: list[float], budget_s: float
) -> None:
    sizes = list(range(1, len(batch_s) + 1))
    counts = batches(sizes, np.array(batch_s), budget_s)
    assert all(ROUNDS <= n <= MAX_SAMPLES for n in counts.values())
    spent = sum(n * s for n, s in zip(counts.values(), batch_s, strict=True))
    assert spent <= max(budget_s, ROUNDS * sum(batch_s)) * (1 + 1e-9)


def test_faster_batches_are_sampled_more_and_all_of_a_budget_is_used() -> None:
    counts = batches([1, 64, 4096], np.array([1e-3, 2e-3, 5e-2]), 4.0)
    assert counts[1] > counts[64] > counts[4096] > ROUNDS
    assert counts[1] * 1e-3 + counts[64] * 2e-3 + counts[4096] * 5e-2 == pytest.approx(4.0, rel=0.05)


def test_rounds_interleave_all_paths_and_sizes() -> None:
    scouted = {"fast": {1: 1e-4, 64: 1e-3}, "slow": {1: 1e-3, 64: 1e-2}}
    order = [b for b in blocks(scouted, 64, 1.0, seed=0) if not b.evicted]
    fitted, unseen = ladder(64)
    each = len(scouted) * len(fitted + unseen)
    for k in range(ROUNDS):
        part = order[k * each : (k + 1) * each]
        assert {(b.path, b.rows) for b in part} == {(p, r) for p in scouted for r in fitted + unseen}
        assert {b.round for b in part} == {k}
    assert [b.rows for b in order] != sorted(b.rows for b in order)


def test_the_order_is_a_function_of_the_seed_so_that_a_run_can_go_on() -> None:
    scouted = {"a": {1: 1e-4, 64: 1e-3}}
    assert blocks(scouted, 64, 1.0, 1) == blocks(scouted, 64, 1.0, 1)
    assert blocks(scouted, 64, 1.0, 1) != blocks(scouted, 64, 1.0, 2)
    keys = [b.key for b in blocks(scouted, 64, 1.0, 1)]
    assert len(keys) == len(set(keys))
