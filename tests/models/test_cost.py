from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.bundle import Bundle
from models.cost import flops, net_flops, sizes
from models.dlrm import Architecture, DenseNet

SLOTS, DENSE = 5, 3


def counted(shape: Architecture, dense: int) -> int:
    """What torch's own counter sees in the products of one row."""
    net = DenseNet(shape, dense, SLOTS).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.randn(1, dense), torch.randn(1, SLOTS, shape.width), torch.randn(1, 0, shape.width))
    return int(counter.get_total_flops())


@pytest.mark.parametrize(("top", "bottom", "dense"), [*product([(), (32, 8)], [(), (16,)], [0, DENSE])])
def test_products_of_the_mlps_are_those_that_torch_counts(
    top: tuple[int, ...], bottom: tuple[int, ...], dense: int
) -> None:
    shape = Architecture(width=4, bottom=bottom, top=top, interaction="cat")
    assert net_flops(shape, dense, SLOTS).total == counted(shape, dense)


@pytest.mark.parametrize("itself", [False, True])
def test_dot_counts_each_pair_once(itself: bool) -> None:
    shape = Architecture(width=4, interaction="dot", itself=itself)
    vectors = SLOTS + 1
    pairs = vectors * (vectors - 1) // 2 + (vectors if itself else 0)
    found = net_flops(shape, DENSE, SLOTS)
    assert found.interaction == 2 * 4 * pairs
    square = 2 * 4 * vectors * vectors
    assert found.total - found.interaction == counted(shape, DENSE) - square


def test_cross_is_its_thin_products_and_an_elementwise_multiply_add() -> None:
    shape = Architecture(width=4, interaction="cross", cross_layers=2, cross_rank=3)
    joined = (SLOTS + 1) * 4
    assert net_flops(shape, DENSE, SLOTS).total == counted(shape, DENSE) + 2 * 2 * joined


def test_a_bundle_costs_its_net_and_its_stage(bundle: Bundle) -> None:
    stage = bundle.stage()
    schema, shape = bundle.manifest.schema_, bundle.manifest.architecture
    found = flops(bundle)
    assert found.embedding == stage.flops
    assert found == net_flops(shape, len(schema.dense), stage.singles + stage.bags, stage.flops)
    assert found.as_dict()["total"] == found.embedding + found.bottom + found.interaction + found.top


def test_bytes_of_rows_and_net_are_the_files(bundle: Bundle) -> None:
    found = sizes(bundle)
    assert found.total == bundle.bytes
    assert found.rows == (bundle.path / "embeddings.safetensors").stat().st_size
    assert found.as_dict() == {"rows": found.rows, "net": found.net, "total": bundle.bytes}
