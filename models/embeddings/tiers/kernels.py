"""One kernel for a batch's look-ups on a GPU: gather, de-quantise and pool, from device or host memory.

Each look-up names a row of the device tier or one of pinned host memory, which the GPU reads through unified
addressing; a program sums the rows of one bag (a single value is a bag of one) straight into the place where
the interaction reads it. `pooled` is the same in torch, on any device: what the kernel is compared with.
Triton is not a dependency: CUDA builds of torch bring it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.embeddings.tiers.form import RowForm

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

PRECISIONS = ("fp32", "bf16", "int8")


def pooled(form: RowForm, hot: Tensor, cold: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    """The sum of each bag, float32 [bags, width].

    hot [n, units], cold [m, units]: rows of the device tier and of host memory, of the form's unit.
    rows: int64 [look-ups]; from 0 on they are rows of `hot`, below 0 row -1 - r of `cold`. offsets: int64
    [bags + 1].
    """
    on_host = rows < 0
    picked = torch.empty((rows.numel(), form.units), dtype=form.unit, device=rows.device)
    picked[~on_host] = hot.index_select(0, rows[~on_host])
    picked[on_host] = cold.index_select(0, (-1 - rows[on_host]).to(cold.device)).to(rows.device)
    bags = torch.repeat_interleave(torch.arange(offsets.numel() - 1, device=rows.device), offsets.diff())
    out = torch.zeros((offsets.numel() - 1, form.width), device=rows.device)
    return out.index_add_(0, bags, form.decode(picked))


def available() -> bool:
    """Whether Triton can be imported."""
    return triton is not None


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _pool(  # type: ignore[no-untyped-def]  # types are Triton's own
        out,
        hot,
        cold,
        rows,
        offsets,
        WIDTH: tl.constexpr,
        UNITS: tl.constexpr,
        BLOCK: tl.constexpr,
        INT8: tl.constexpr,
    ):
        bag = tl.program_id(0)
        column = tl.arange(0, BLOCK)
        inside = column < WIDTH
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for i in range(tl.load(offsets + bag), tl.load(offsets + bag + 1)):
            row = tl.load(rows + i)
            start = cold + (-1 - row) * UNITS
            if row >= 0:
                start = hot + row * UNITS
            if INT8:
                # a row begins with its scale, bf16 in two bytes, and its zero
                low = tl.load(start).to(tl.uint32)
                high = tl.load(start + 1).to(tl.uint32)
                scale = ((high << 24) | (low << 16)).to(tl.float32, bitcast=True)
                zero = tl.load(start + 2).to(tl.float32)
                x = (tl.load(start + 3 + column, mask=inside, other=0).to(tl.float32) - zero) * scale
            else:
                x = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
            total += x
        tl.store(out + bag * WIDTH + column, total, mask=inside)


def pool(
    form: RowForm, hot: Tensor, cold: Tensor, rows: Tensor, offsets: Tensor, out: Tensor | None = None
) -> Tensor:
    """As `pooled`, by the kernel. hot, rows, offsets, out: on the GPU; cold: pinned host memory.

    Raises ValueError for int4 rows; RuntimeError where there is no Triton.
    """
    if triton is None:
        raise RuntimeError("there is no triton on this machine")
    if form.precision not in PRECISIONS:
        raise ValueError(f"the kernel reads {', '.join(PRECISIONS)} rows, not {form.precision}")
    bags = offsets.numel() - 1
    if out is None:
        out = torch.empty((bags, form.width), device=rows.device)
    if bags:
        kernel: Any = _pool
        kernel[(bags,)](
            out,
            hot,
            cold,
            rows,
            offsets,
            WIDTH=form.width,
            UNITS=form.units,
            BLOCK=triton.next_power_of_2(form.width),
            INT8=form.precision == "int8",
        )
    return out
