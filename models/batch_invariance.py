"""Torch's products on a CPU, shaped so that a row's result is the same bits in any batch.

Small products run by other kernels, which add in another order: ATen has its own below a number of
multiplications (`bmm_out_or_baddbmm_` in LinearAlgebra.cpp, `mkldnn_gemm_min_size` in mkldnn/Matmul.cpp), and
in fp32 MKL has others for fewer than four rows and for what is left of a multiple of four columns or, with a
single column, rows. Results differ in the last bits of fp32. Where that tips a rounding to bf16 or int8 the
answer moves by some 1e-4, and in fp32 by up to 4e-6 where large numbers cancel out: a request would be
answered differently in a batch than alone. So products are filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 4
"""Rows of a dense net's batch, and columns of a decoder's product, are multiples of it."""
MULTIPLICATIONS = {torch.float32: 400, torch.bfloat16: 16**3}
"""Up to so many in a product, by dtype, ATen may take a kernel of its own."""


def fewest_rows(products: Iterable[int], dtype: torch.dtype) -> int:
    """How many rows a batch must have, a multiple of BLOCK.

    products: multiplications of one row in each product that the rows go through.
    """
    return whole_blocks(MULTIPLICATIONS[dtype] // min(products) + 1)


def whole_blocks(n: int) -> int:
    """n rounded up to a multiple of BLOCK."""
    return n + -n % BLOCK


def affine(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """bias [t, 1, out] + x [t, rows, in] @ weight [t, in, out], fp32, the columns in whole blocks.

    rows: from `fewest_rows` on any number.
    """
    missing = whole_blocks(weight.shape[2]) - weight.shape[2]
    if not missing:
        return torch.baddbmm(bias, x, weight)
    return torch.baddbmm(F.pad(bias, (0, missing)), x, F.pad(weight, (0, missing)))[:, :, :-missing]
