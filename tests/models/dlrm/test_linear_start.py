"""Tests the weights that a net begins training with."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from polyrec.models.dlrm.dlrm import Architecture, DenseNet, Inputs
from polyrec.models.dlrm.linear_start import PASSED, start_linear
from polyrec.models.embeddings.stage import PerBlock

ROWS = 40
DENSE, SLOTS = PerBlock(2, 1), PerBlock(2, 3)


def net_of(top: tuple[int, ...] = (32, 8), interaction: str = "cross", width: int = 4) -> DenseNet:
    torch.manual_seed(3)
    shape = Architecture.model_validate(
        {"width": width, "bottom": (16, 8), "top": top, "interaction": interaction}
    )
    return DenseNet(shape, DENSE, SLOTS)


def inputs_of(width: int = 4) -> Inputs:
    torch.manual_seed(4)
    dense = (torch.randn(ROWS, n) for n in DENSE)
    vectors = (torch.randn(ROWS, n, width) for n in SLOTS)
    return Inputs(*dense, *vectors, None)


@pytest.mark.parametrize("interaction", ["cross", "cat"])
@pytest.mark.parametrize("top", [(32,), (32, 8)])
def test_two_units_pass_a_mean_of_first_columns_and_of_dense_values(
    interaction: str, top: tuple[int, ...]
) -> None:
    net, inputs = net_of(top, interaction), inputs_of()
    start_linear(net)
    with torch.no_grad():
        net.output.weight[:, 2:] = 0
        found = net(inputs) - net.output.bias
    assert net.bottom is not None
    dense = torch.cat((inputs.dense_context, inputs.dense_candidate), dim=1)
    columns = torch.cat((inputs.context, inputs.candidate), dim=1)[:, :, 0]
    expected = PASSED / 6 * (dense @ net.bottom[0].weight[0] + columns.sum(1))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_every_weight_of_the_linear_path_gets_a_gradient() -> None:
    net, inputs = net_of(), inputs_of()
    start_linear(net)
    net(inputs).square().sum().backward()
    assert net.bottom is not None
    for before, after in pairwise([net.bottom[0], net.bottom[2], net.bottom[4]]):
        assert before.weight.grad[:2].abs().sum(1).min() > 0
        assert after.weight.grad[:2, :2].abs().sum(1).min() > 0
    assert net.top[0].weight.grad[:2].abs().sum(1).min() > 0


@pytest.mark.parametrize(
    ("top", "interaction", "width"), [((32,), "dot", 4), ((), "cat", 4), ((8,), "cat", 1)]
)
def test_a_net_without_room_for_a_linear_path_stays_as_it_is(
    top: tuple[int, ...], interaction: str, width: int
) -> None:
    net = net_of(top, interaction, width)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    start_linear(net)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
