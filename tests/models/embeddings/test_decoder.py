from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.embeddings.decoder import (
    ACTIVATIONS,
    PADDING,
    SECOND_MOMENT,
    Activation,
    Decoders,
    DecodersByRows,
    fold_norms,
    hidden_widths,
    keep_decoders,
    runs,
)
from polyrec.models.embeddings.hashing import VARIANCE, CodeTransform, UniversalHashes


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


def test_another_device_computes_few_rows_in_one_run_and_many_in_several() -> None:
    counts = np.array([1, 1, 1, 23, 23])
    assert runs(counts, free=5 * 23) == [(0, 5)]
    assert runs(counts, free=4 * 23) == [(0, 4), (4, 5)]
    assert runs(100 * counts, free=5 * 23) == runs(100 * counts)


@pytest.mark.gpu
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("counts", [[1, 1, 1, 23, 23], [0, 3000, 2, 900], [40_000, 1, 7]])
def test_vectors_on_a_gpu_are_those_of_the_cpu(counts: list[int], norms: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    decoders = Decoders(len(counts), 16, (24, 8), 5, norms=norms)
    decoders.initialize(generator, [0.1] * len(counts))
    codes = torch.rand((sum(counts), 16), generator=generator)
    with torch.inference_mode():
        expected = decoders.eval()(codes, np.array(counts))
        got = decoders.cuda()(codes.cuda(), np.array(counts))
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


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
@pytest.mark.parametrize("hidden", [(128,), (256, 128), (128, 128, 64, 64, 64)])
@pytest.mark.parametrize("activation", ["relu", "mish"])
@pytest.mark.parametrize("transform", ["uniform", "gaussian"])
def test_initial_vectors_have_the_given_deviation(
    spread: float, hidden: tuple[int, ...], activation: Activation, transform: CodeTransform
) -> None:
    deviations = []
    for seed in range(5):
        decoders = Decoders(1, 256, hidden, 16, activation)
        decoders.initialize(torch.Generator().manual_seed(seed), [spread], VARIANCE[transform])
        codes = UniversalHashes(256, 1_000_000, 2000, seed, transform)(torch.arange(2000))
        with torch.inference_mode():
            deviations.append(float(decoders(codes, np.array([2000])).square().mean().sqrt()))
    assert abs(np.mean(deviations) / spread - 1) < 0.25


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_second_moments_are_those_of_a_normal_input(activation: Activation) -> None:
    z = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5
    moment = torch.trapezoid(ACTIVATIONS[activation](z).square() * density, z)
    assert SECOND_MOMENT[activation] == pytest.approx(float(moment), abs=1e-5)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_mlps_with_norms_equal_torchs_in_training_and_folded_in_serving(activation: Activation) -> None:
    generator = torch.Generator().manual_seed(3)
    counts = np.array([9, 1, 30])
    decoders = Decoders(3, 6, (5, 4), 3, activation, norms=True)
    decoders.initialize(generator, [0.1] * 3)
    with torch.no_grad():
        for norm in decoders.norms:
            norm.gain.uniform_(0.5, 2, generator=generator)
            norm.shift.uniform_(-1, 1, generator=generator)
    norms = [[torch.nn.BatchNorm1d(size) for size in (5, 4)] for _ in counts]
    for table, own in enumerate(norms):
        for reference, norm in zip(own, decoders.norms, strict=True):
            reference.weight.data, reference.bias.data = norm.gain[table, 0].data, norm.shift[table, 0].data

    def expected(codes: torch.Tensor) -> torch.Tensor:
        parts = []
        for table, x in enumerate(codes.split(counts.tolist())):
            for layer in range(3):
                x = ACTIVATIONS[activation](x) if layer else x
                x = x @ decoders.weights[layer][table] + decoders.biases[layer][table]
                if layer < 2:
                    # torch refuses a single row; ours takes the running statistics for it
                    norms[table][layer].train(decoders.training and len(x) > 1)
                    x = norms[table][layer](x)
            parts.append(x)
        return torch.cat(parts)

    for _ in range(4):
        codes = torch.rand((40, 6), generator=generator) * 2 - 1
        got = decoders(codes, counts)
        np.testing.assert_allclose(got.detach(), expected(codes).detach(), rtol=1e-4, atol=1e-5)
    got.sum().backward()
    assert all(p.grad is not None for p in decoders.parameters())
    decoders.eval()
    with torch.inference_mode():
        before = decoders(codes, counts)
        np.testing.assert_allclose(before, expected(codes), rtol=1e-4, atol=1e-5)
    fold_norms(decoders)
    with torch.inference_mode():
        np.testing.assert_allclose(decoders(codes, counts), before, rtol=1e-4, atol=1e-5)
    assert set(decoders.state_dict()) == {f"{kind}.{i}" for kind in ("weights", "biases") for i in range(3)}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.booleans(), st.integers(0, 1000))
def test_decoders_by_rows_equal_one_mlp_a_table(counts: list[int], norms: bool, seed: int) -> None:
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    hidden = [tuple(random.integers(1, 9, 2).tolist()) for _ in counts]
    decoders = DecodersByRows(6, hidden, 3, "mish", norms)
    decoders.initialize(generator, [0.1] * len(counts))
    assert decoders.flops == [2 * (6 * a + a * b + b * 3) for a, b in hidden]
    # a step in training gives the norms statistics to fold
    decoders(torch.rand((sum(counts), 6), generator=generator), np.array(counts))
    decoders.eval()
    codes = torch.rand((sum(counts), 6), generator=generator)
    with torch.inference_mode():
        before = decoders(codes, np.array(counts))
        fold_norms(decoders)
        got = decoders(codes, np.array(counts))
        expected = []
        for table, x in enumerate(codes.split(counts)):
            for i, (weight, bias) in enumerate(decoders.layers(table)):
                x = ACTIVATIONS["mish"](x) if i else x
                x = x @ weight + bias
            expected.append(x)
    np.testing.assert_allclose(got, torch.cat(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "hidden"),
    [(1, (16, 16, 8)), (17, (32, 32, 8)), (256, (256, 256, 8)), (257, (512, 256, 8)), (10**9, (512, 256, 8))],
)
def test_a_layer_is_no_wider_than_its_table_has_rows(rows: int, hidden: tuple[int, ...]) -> None:
    assert hidden_widths((512, 256, 8), rows) == hidden


@pytest.mark.parametrize("by_rows", [False, True])
def test_decoders_of_some_tables_decode_as_all_did(by_rows: bool) -> None:
    def make(tables: list[int]) -> Decoders | DecodersByRows:
        if by_rows:
            return DecodersByRows(6, [(5 + t,) for t in tables], 3)
        return Decoders(len(tables), 6, (5,), 3)

    whole, part = make([0, 1, 2]), make([0, 2])
    whole.initialize(torch.Generator().manual_seed(0), [0.1, 0.2, 0.3])
    part.load_state_dict(keep_decoders(whole.state_dict(), [0, 2]))
    codes = torch.rand(9, 6, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = whole(codes, np.array([4, 0, 5]))
        np.testing.assert_allclose(part(codes, np.array([4, 5])), expected, rtol=1e-5, atol=1e-6)
