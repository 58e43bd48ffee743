from __future__ import annotations

import pytest
import torch

from polyrec.models.dlrm.batch_invariance import (
    affine,
    min_batch_rows,
    pad_layers,
    round_up_to_block,
)


@pytest.mark.parametrize("sizes", [(3, 5), (10, 6), (64, 32), (16, 64), (64, 1), (367, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_of_enough_rows_gives_each_the_same_bits_in_any_batch(
    sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    g = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(size, generator=g).to(dtype) for size in (sizes, sizes[1:]))
    fewest = min_batch_rows([weight.numel()], dtype)
    assert fewest == round_up_to_block(fewest)
    x = torch.randn(8 * fewest, sizes[0], generator=g).to(dtype)

    def product(first: int, rows: int) -> torch.Tensor:
        part = x[first : first + rows]
        if dtype is torch.bfloat16:
            return torch.addmm(bias, part, weight)
        return affine(bias.view(1, 1, -1), part[None], weight[None])[0]

    whole = product(0, len(x))
    for rows in (fewest, fewest + 1, 2 * fewest - 1, 7 * fewest):
        for first in range(0, len(x) - rows + 1, max(1, rows // 7)):
            assert torch.equal(product(first, rows), whole[first : first + rows])


@pytest.mark.parametrize("size", [1, 3, 32, 34])
def test_a_row_that_is_not_finite_spoils_no_other_one(size: int) -> None:
    g = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(size, 5), torch.nn.ReLU(), torch.nn.Linear(5, 16)).bfloat16()
    x = torch.randn(1366, size, generator=g).bfloat16()
    with torch.inference_mode():
        plain = net(x)
        pad_layers(net)
        clean = net(x)
        torch.testing.assert_close(clean, plain)
        x[7] = float("nan")
        kept = torch.arange(1366) != 7
        assert torch.equal(net(x)[kept], clean[kept])
