from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.embeddings.decoder import PADDING, Decoders, runs


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 1000))
def test_batched_products_equal_one_mlp_a_table(counts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    decoders = Decoders(len(counts), 6, (5, 4), 3)
    decoders.initialize(generator, [0.1] * len(counts))
    codes = torch.rand((sum(counts), 6), generator=generator)
    with torch.inference_mode():
        got = decoders(codes, np.array(counts))
        expected, start = [], 0
        for table, count in enumerate(counts):
            x = codes[start : start + count]
            for layer in range(3):
                x = x.relu() if layer else x
                x = x @ decoders.weights[layer][table] + decoders.biases[layer][table]
            expected.append(x)
            start += count
    np.testing.assert_allclose(got, torch.cat(expected), rtol=1e-4, atol=1e-5)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30))
def test_runs_cover_every_table_once_and_waste_little(counts: list[int]) -> None:
    cut = runs(np.array(counts))
    assert [first for first, _ in cut] == [0, *(last for _, last in cut[:-1])]
    assert cut[-1][1] == len(counts)
    for first, last in cut:
        part = counts[first:last]
        assert max(part) * len(part) <= max(PADDING * sum(part), max(part))


def test_a_balanced_batch_is_one_product_and_a_ranking_batch_a_few() -> None:
    assert runs(np.full(26, 128)) == [(0, 26)]
    assert runs(np.array([1, 1, 1, 23, 23])) == [(0, 3), (3, 5)]


def test_gradients_reach_every_table_that_was_used() -> None:
    decoders = Decoders(3, 4, (8,), 2)
    decoders.initialize(torch.Generator().manual_seed(0), [1.0] * 3)
    decoders(torch.rand(7, 4), np.array([5, 0, 2])).sum().backward()
    for weight in decoders.weights:
        assert weight.grad is not None
        assert weight.grad[0].abs().sum() > 0
        assert weight.grad[1].abs().sum() == 0
        assert weight.grad[2].abs().sum() > 0


@pytest.mark.parametrize("spread", [0.01, 0.3])
def test_initial_vectors_have_the_given_deviation(spread: float) -> None:
    decoders = Decoders(1, 256, (128,), 16)
    decoders.initialize(torch.Generator().manual_seed(0), [spread])
    codes = torch.rand((2000, 256), generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.inference_mode():
        assert abs(float(decoders(codes, np.array([2000])).std()) / spread - 1) < 0.25
