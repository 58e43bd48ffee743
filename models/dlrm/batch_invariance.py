"""Pads matrix products of torch on a CPU, so that a row's result is bit-identical in any batch.

Small products run in other kernels, which add in another order: ATen has its own below a number of
multiplications (`bmm_out_or_baddbmm_` in LinearAlgebra.cpp, `mkldnn_gemm_min_size` in mkldnn/Matmul.cpp), and
in fp32 MKL has others for fewer than four rows and for the remainder of columns (with a single column: of
rows) after a multiple of four. Results differ in the last bits of fp32. If that changes a rounding to bf16 or
int8, the answer changes by about 1e-4, and in fp32 by up to 4e-6 where large numbers cancel out: a request
would be answered differently in a batch than alone. So products are padded with zeros.

The inputs of bf16 products are also padded to a multiple of TILE. On processors with AMX, oneDNN fills
the last tile of a row with the beginning of the next row, times weights of zero: if that row is not finite,
neither is this one's result (torch 2.13 on a Xeon with AMX: 3 inputs and 1,366 rows, or 34 and 68).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 4
"""Rows of a dense net's batch, and columns of a decoder's product, are padded to a multiple of this."""
TILE = 32
"""Numbers of bf16 in a row of an AMX tile."""
MULTIPLICATIONS = {torch.float32: 400, torch.bfloat16: 16**3}
"""Maximum multiplications of a product for which ATen may use its own kernel, by dtype."""


def min_batch_rows(products: Iterable[int], dtype: torch.dtype) -> int:
    """Minimum rows of a batch, a multiple of BLOCK.

    products: multiplications of one row, for each product that a batch is put through.
    """
    return round_up_to_block(MULTIPLICATIONS[dtype] // min(products) + 1)


def round_up_to_block(n: int) -> int:
    """n rounded up to a multiple of BLOCK."""
    return n + -n % BLOCK


def padded(x: Tensor, columns: int) -> Tensor:
    """Returns x with zeros as further columns, up to `columns`."""
    missing = columns - x.shape[-1]
    return F.pad(x, (0, missing)) if missing else x


def tiled(weight: Tensor) -> Tensor:
    """Returns a weight [out, in] with zeros as further columns, up to a multiple of TILE."""
    return padded(weight, weight.shape[1] + -weight.shape[1] % TILE)


def pad_layers(net: nn.Module) -> None:
    """Pads the inputs of every linear layer, and its weights, with zeros to a multiple of TILE."""

    def pad(layer: nn.Linear, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (padded(inputs[0], layer.weight.shape[1]),)

    for layer in net.modules():
        if isinstance(layer, nn.Linear) and layer.in_features % TILE:
            layer.weight = nn.Parameter(tiled(layer.weight.detach()), False)
            layer.register_forward_pre_hook(pad)


def affine(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Computes bias [t, 1, out] + x [t, rows, in] @ weight [t, in, out] in fp32, with padded columns.

    rows: at least `min_batch_rows`.
    """
    missing = round_up_to_block(weight.shape[2]) - weight.shape[2]
    if not missing:
        return torch.baddbmm(bias, x, weight)
    return torch.baddbmm(F.pad(bias, (0, missing)), x, F.pad(weight, (0, missing)))[:, :, :-missing]
