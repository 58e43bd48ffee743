"""Pads CPU matrix products, so that a row's result is bit-identical in every batch.

Small products run in different kernels, which add in a different order. ATen uses its own kernel below a
certain number of multiplications (`bmm_out_or_baddbmm_` in LinearAlgebra.cpp, `mkldnn_gemm_min_size` in
mkldnn/Matmul.cpp). In fp32, MKL uses other kernels for fewer than four rows, and for the columns left over
after a multiple of four (for rows, if there is a single column). Results then differ in the last bits: up to
4e-6 in fp32 where large numbers cancel, and about 1e-4 if the difference flips a rounding to bf16 or int8.
Without padding, a request would be answered differently in a batch than alone.

The inputs of bf16 products are also padded to a multiple of TILE. With AMX, oneDNN fills the last tile of a
row with the start of the next row, multiplied by zero weights. If that next row is not finite, this row's
result is not finite either (torch 2.13 on a Xeon with AMX: 3 inputs and 1,366 rows, or 34 and 68).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 4
"""Rows of a dense net's batch and columns of a decoder's product are padded to a multiple of this."""
TILE = 32
"""bf16 values per row of an AMX tile."""
MULTIPLICATIONS = {torch.float32: 400, torch.bfloat16: 16**3}
"""Maximum multiplications, by dtype, of a product for which ATen may use its own kernel."""


def min_batch_rows(products: Iterable[int], dtype: torch.dtype) -> int:
    """Returns the minimum rows of a batch, a multiple of BLOCK.

    products: multiplications per row of each product that the batch goes through.
    """
    return round_up_to_block(MULTIPLICATIONS[dtype] // min(products) + 1)


def round_up_to_block(n: int) -> int:
    """Rounds n up to a multiple of BLOCK."""
    return n + -n % BLOCK


def padded(x: Tensor, columns: int) -> Tensor:
    """Appends zero columns to x, up to `columns` columns."""
    missing = columns - x.shape[-1]
    return F.pad(x, (0, missing)) if missing else x


def tiled(weight: Tensor) -> Tensor:
    """Appends zero columns to a weight [out, in], up to a multiple of TILE."""
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
