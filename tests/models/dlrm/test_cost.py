from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.context_once import ContextOnce
from polyrec.models.dlrm.cost import RankingFlops, flops, net_flops, ranking_net_flops, sizes
from polyrec.models.dlrm.dlrm import Architecture, DenseNet, Inputs
from polyrec.models.embeddings.stage import PerBlock

SLOTS, DENSE = 5, 3


def counted(shape: Architecture, dense: int) -> int:
    """Counts the products of one row with torch's FLOP counter."""
    slots = PerBlock(0, SLOTS)
    net = DenseNet(shape, PerBlock(0, dense), slots).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(random_inputs(PerBlock(0, dense), slots, shape.width, 1, 1)._replace(context_row=None))
    return int(counter.get_total_flops())


def random_inputs(dense: PerBlock, slots: PerBlock, width: int, rows: int, contexts: int) -> Inputs:
    return Inputs(
        torch.randn(contexts, dense.context),
        torch.randn(rows, dense.candidate),
        torch.randn(contexts, slots.context, width),
        torch.randn(rows, slots.candidate, width),
        torch.zeros(rows, dtype=torch.int64),
    )


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


@pytest.mark.parametrize("interaction", ["dot", "cat", "cross"])
@pytest.mark.parametrize("dense", [PerBlock(2, 0), PerBlock(1, 1), PerBlock(0, 0)])
@pytest.mark.parametrize("top", [(), (6, 5)])
def test_a_ranking_request_costs_what_torch_counts(
    interaction: str, dense: PerBlock, top: tuple[int, ...]
) -> None:
    shape = Architecture(width=4, top=top, interaction=interaction, cross_layers=2, cross_rank=3)
    slots = PerBlock(3, 2)
    net = DenseNet(shape, dense, slots).eval()
    counted = []
    for rows in (1, 8):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            ContextOnce(net)(random_inputs(dense, slots, 4, rows, 1))
        counted.append(int(counter.get_total_flops()))
    row = (counted[1] - counted[0]) // 7
    found = ranking_net_flops(net)
    elementwise = 2 * 2 * (sum(slots) + (sum(dense) > 0)) * 4 if interaction == "cross" else 0
    assert found == RankingFlops(counted[0] - row, row + elementwise)


def test_a_bundle_costs_its_net_and_its_stage(bundle: Bundle) -> None:
    stage = bundle.stage()
    schema, shape = bundle.manifest.schema_, bundle.manifest.architecture
    found = flops(bundle)
    assert found.embedding == sum(stage.flops)
    assert found == net_flops(shape, len(schema.numbers), sum(stage.slots), sum(stage.flops))
    assert found.as_dict()["total"] == found.embedding + found.bottom + found.interaction + found.top


def test_bytes_of_rows_and_net_are_the_files(bundle: Bundle) -> None:
    found = sizes(bundle)
    assert found.total == bundle.bytes
    assert found.rows == (bundle.path / "embeddings.safetensors").stat().st_size
    assert found.as_dict() == {"rows": found.rows, "net": found.net, "total": bundle.bytes}
