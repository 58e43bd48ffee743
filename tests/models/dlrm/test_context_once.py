from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.dlrm.context_once import ContextOnce
from polyrec.models.dlrm.dlrm import Architecture, DenseNet, Inputs
from polyrec.models.embeddings.stage import PerBlock

INTERACTIONS = ["dot", "cat", "cross"]


def random_net(
    seed: int, interaction: str, itself: bool, top: tuple[int, ...], dense: PerBlock, slots: PerBlock
) -> DenseNet:
    torch.manual_seed(seed)
    shape = Architecture(
        width=4, bottom=(5,), top=top, interaction=interaction, itself=itself, cross_layers=2, cross_rank=3
    )
    return DenseNet(shape, dense, slots).eval()


def random_inputs(seed: int, dense: PerBlock, slots: PerBlock, rows: int, contexts: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return Inputs(
        torch.randn((contexts, dense.context), generator=generator),
        torch.randn((rows, dense.candidate), generator=generator),
        torch.randn((contexts, slots.context, 4), generator=generator),
        torch.randn((rows, slots.candidate, 4), generator=generator),
        torch.randint(0, contexts, (rows,), generator=generator),
    )


@given(
    st.integers(0, 10_000),
    st.sampled_from(INTERACTIONS),
    st.booleans(),
    st.sampled_from([(), (6,), (6, 5)]),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.integers(0, 3), st.integers(1, 3)),
    st.integers(0, 9),
    st.integers(1, 4),
)
def test_computing_contexts_once_gives_the_exploded_rows_numbers(
    seed: int,
    interaction: str,
    itself: bool,
    top: tuple[int, ...],
    dense: tuple[int, int],
    slots: tuple[int, int],
    rows: int,
    contexts: int,
) -> None:
    if interaction == "dot" and sum(slots) + (sum(dense) > 0) < 2 and not itself and not sum(dense):
        return  # a single vector has no pairs
    net = random_net(seed, interaction, itself, top, PerBlock(*dense), PerBlock(*slots))
    inputs = random_inputs(seed, PerBlock(*dense), PerBlock(*slots), rows, contexts)
    with torch.inference_mode():
        np.testing.assert_allclose(ContextOnce(net)(inputs), net(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interaction", INTERACTIONS)
def test_a_plain_batch_uses_the_plain_net(interaction: str) -> None:
    dense, slots = PerBlock(1, 1), PerBlock(2, 2)
    net = random_net(0, interaction, False, (6,), dense, slots)
    inputs = random_inputs(0, dense, slots, 5, 5)._replace(context_row=None)
    with torch.inference_mode():
        assert torch.equal(ContextOnce(net)(inputs), net(inputs))


def test_the_products_of_a_net_are_all_counted() -> None:
    net = DenseNet(
        Architecture(width=8, bottom=(16,), top=(32,), interaction="dot"), PerBlock(0, 2), PerBlock(2, 3)
    )
    # bottom, top and output; own and shared columns of the first top layer; the vectors' products
    layers = [2 * 16, 16 * 8, (8 + 15) * 32, 32]
    own, shared = (8 + 4 * 2 + 4 * 4) * 32, (2 * 2) * 32
    pairs = [8 * n for n in (6 * 6, 2 * 2, 4 * 2, 4 * 4)]
    assert sorted(ContextOnce(net).products()) == sorted([*layers, own, shared, *pairs])
