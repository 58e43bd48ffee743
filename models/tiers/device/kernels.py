"""Gathers, dequantizes and pools the lookups of a batch from device or host memory (a Triton kernel).

Each lookup is a row of the device tier or of pinned host memory, which the GPU reads through unified
addressing. A program sums the rows of a few bags (a single value is a bag of one) into the interaction's
input. `pooled` is the reference in torch, also used where there is no GPU. Triton is not a dependency: CUDA
builds of torch include it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.store import pool_gathered
from polyrec.models.tiers.row_format import RowFormat

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")
TILE = 1024
"""Numbers that a program adds at once: eight per thread, so that several loads overlap."""


def pooled(
    row_format: RowFormat,
    hot: Tensor,
    cold: Tensor,
    rows: Tensor,
    offsets: Tensor | None = None,
    scale: Tensor | None = None,
    which: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Computes the sum of each bag, float32 [bags, width].

    hot: [n, units], rows of the device tier. cold: [m, units], rows of host memory, which may overlap (a
    slab's view).
    rows: int64 [lookups]; r >= 0 is row r of `hot`, r < 0 is row -1 - r of `cold`.
    offsets: int64 [bags + 1]; None if every lookup is a bag of its own.
    scale: float32 [bags], factors applied to the sums.
    which: int64 [chosen], ascending; only these bags are computed and written to `out`.
    """
    bags = rows.numel() if offsets is None else offsets.numel() - 1
    if out is None:
        out = torch.empty((bags, row_format.width), device=rows.device)
    if which is not None:
        if offsets is None:
            rows = rows[which]
        else:
            lengths = offsets.diff()
            chosen = torch.zeros(bags, dtype=torch.bool, device=rows.device)
            chosen[which] = True
            rows = rows[torch.repeat_interleave(chosen, lengths)]
            offsets = torch.cat((offsets.new_zeros(1), lengths[which].cumsum(0)))
        scale = None if scale is None else scale[which]
    on_host = rows < 0
    picked = torch.empty((rows.numel(), row_format.units), dtype=row_format.unit, device=rows.device)
    picked[~on_host] = hot.index_select(0, rows[~on_host])
    picked[on_host] = cold.index_select(0, (-1 - rows[on_host]).to(cold.device)).to(rows.device)
    numbers = row_format.decode(picked)
    sums = numbers if offsets is None else pool_gathered(numbers, offsets)
    if scale is not None:
        sums = sums * scale.unsqueeze(1)
    if which is None:
        return out.copy_(sums)
    return out.index_copy_(0, which, sums)


def available() -> bool:
    """Whether Triton can be imported."""
    return triton is not None


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _rows(  # type: ignore[no-untyped-def]  # types are Triton's own
        hot, cold, row, there,
        HOT: tl.constexpr, COLD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, INT8: tl.constexpr,
    ):  # fmt: skip
        column = tl.arange(0, BLOCK)[None, :]
        inside = column < WIDTH
        near, far = there & (row >= 0), there & (row < 0)
        # of the two loads per lookup, one is masked and reads no memory
        a, b = hot + row * HOT, cold + (-1 - row) * COLD
        if INT8:
            # a row begins with its scale (bf16, two bytes) and its zero point
            low = tl.load(a, mask=near, other=0) + tl.load(b, mask=far, other=0)
            high = tl.load(a + 1, mask=near, other=0) + tl.load(b + 1, mask=far, other=0)
            zero = tl.load(a + 2, mask=near, other=0) + tl.load(b + 2, mask=far, other=0)
            scale = ((high.to(tl.uint32) << 24) | (low.to(tl.uint32) << 16)).to(tl.float32, bitcast=True)
            x = tl.load(a[:, None] + 3 + column, mask=near[:, None] & inside, other=0)
            x += tl.load(b[:, None] + 3 + column, mask=far[:, None] & inside, other=0)
            return (x.to(tl.float32) - zero.to(tl.float32)[:, None]) * scale[:, None]
        x = tl.load(a[:, None] + column, mask=near[:, None] & inside, other=0.0).to(tl.float32)
        return x + tl.load(b[:, None] + column, mask=far[:, None] & inside, other=0.0).to(tl.float32)

    # the number of bags varies by batch and must not trigger recompilation; a kernel takes no objects
    @triton.jit(do_not_specialize=["bags"])  # type: ignore[untyped-decorator, unused-ignore]
    def pool_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
        out, hot, cold, rows, offsets, scale, which, bags,
        WIDTH: tl.constexpr, HOT: tl.constexpr, COLD: tl.constexpr, BLOCK: tl.constexpr, BAGS: tl.constexpr,
        INT8: tl.constexpr, SINGLE: tl.constexpr, SCALED: tl.constexpr, CHOSEN: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0).to(tl.int64) * BAGS + tl.arange(0, BAGS)
        there = place < bags
        bag = place
        if CHOSEN:
            bag = tl.load(which + place, mask=there, other=0)
        if SINGLE:
            row = tl.load(rows + bag, mask=there, other=0)
            total = _rows(hot, cold, row, there, HOT, COLD, WIDTH, BLOCK, INT8)
        else:
            first = tl.load(offsets + bag, mask=there, other=0)
            length = tl.load(offsets + bag + 1, mask=there, other=0) - first
            total = tl.zeros((BAGS, BLOCK), dtype=tl.float32)
            for i in range(tl.max(length, axis=0)):
                within = i < length
                row = tl.load(rows + first + i, mask=within, other=0)
                total += _rows(hot, cold, row, within, HOT, COLD, WIDTH, BLOCK, INT8)
        if SCALED:
            total *= tl.load(scale + bag, mask=there, other=0.0)[:, None]
        column = tl.arange(0, BLOCK)[None, :]
        tl.store(out + bag[:, None] * WIDTH + column, total, mask=there[:, None] & (column < WIDTH))


def pool(
    row_format: RowFormat,
    hot: Tensor,
    cold: Tensor,
    rows: Tensor,
    offsets: Tensor | None = None,
    scale: Tensor | None = None,
    which: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Computes `pooled` with the kernel. All tensors must be on the GPU; `cold` may be pinned host memory.

    Raises ValueError for int4 rows, RuntimeError without Triton.
    """
    if triton is None:
        raise RuntimeError("there is no triton on this machine")
    if row_format.precision not in PRECISIONS:
        raise ValueError(f"the kernel reads {', '.join(PRECISIONS)} rows, not {row_format.precision}")
    every = rows.numel() if offsets is None else offsets.numel() - 1
    if out is None:
        out = torch.empty((every, row_format.width), device=rows.device)
    bags = every if which is None else which.numel()
    if not bags:
        return out
    block = triton.next_power_of_2(row_format.width)
    at_once = max(1, TILE // block)
    kernel: Any = pool_kernel
    kernel[(triton.cdiv(bags, at_once),)](
        out,
        hot,
        cold,
        rows,
        # unused arguments must still be pointers
        rows if offsets is None else offsets,
        out if scale is None else scale,
        rows if which is None else which,
        bags,
        WIDTH=row_format.width,
        HOT=hot.stride(0),
        COLD=cold.stride(0),
        BLOCK=block,
        BAGS=at_once,
        INT8=row_format.precision == "int8",
        SINGLE=offsets is None,
        SCALED=scale is not None,
        CHOSEN=which is not None,
    )
    return out


def sums(
    row_format: RowFormat,
    hot: Tensor,
    cold: Tensor,
    rows: Tensor,
    offsets: Tensor | None,
    scale: Tensor | None,
    which: Tensor | None,
    out: Tensor,
) -> Tensor:
    """Computes `pool` if supported, else `pooled`."""
    compute = pool if rows.is_cuda and triton is not None and row_format.precision in PRECISIONS else pooled
    return compute(row_format, hot, cold, rows, offsets, scale, which, out)
