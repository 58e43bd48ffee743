"""Stores embedding rows in one precision, read by one gather.

    fp32   4 bytes per number
    bf16   2 bytes per number
    int8   1 byte per number plus 3 per row: x = scale * (q - zero), scale in bf16, zero in uint8
    int4   half a byte per number plus 3 per row: the same, with q in 0 ... 15

Quantized rows keep scale, zero point and numbers in adjacent bytes, so that a lookup touches one place.
Quantization is row-wise as in fbgemm, but stores the bias as a zero point (-scale * zero), which takes one
byte instead of two. The range of a row always contains zero.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyrec.models.dlrm.precision import Precision
from polyrec.models.powers import next_power_of_two
from polyrec.models.schema.batch import I64
from polyrec.models.transfer import on_device

HEAD = 3
LEVELS = {"int8": 255, "int4": 15}


class Source(Protocol):
    """A source of rows by index."""

    def gather(self, index: Tensor) -> Tensor:
        """Returns rows, float32 [n, width], valid until the next call. index: int64 [n]."""
        ...

    def pool(self, index: Tensor, offsets: Tensor) -> Tensor:
        """Returns the sum of each bag, float32 [bags, width]. index: int64 [n], offsets: int64 [bags + 1]."""
        ...


def pool_rows(rows: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    """Sums bags of `rows` [m, width]."""
    sparse = isinstance(rows, nn.Parameter) and torch.is_grad_enabled()
    # like torch.nn.functional.embedding_bag, without its checks, which take as long as a small bag
    return torch.embedding_bag(rows, index, offsets, False, 0, sparse, None, True)[0]


def pool_gathered(rows: Tensor, offsets: Tensor) -> Tensor:
    """Sums consecutive `rows` [n, width]."""
    return pool_rows(rows, torch.arange(rows.shape[0], device=rows.device), offsets)


class FloatRows(nn.Module):
    """fp32 (trainable, with sparse gradients) or bf16 rows.

    Without gradients, `gather` writes into a buffer that is reused between calls.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.rows, self.width = weight.shape
        self.weight = nn.Parameter(weight)
        self._buffer = weight.new_empty(0)

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def gather(self, index: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return F.embedding(index, self.weight, sparse=True)
        if self._buffer.shape[0] < index.numel() or self._buffer.device != index.device:
            self._buffer = self.weight.new_empty((next_power_of_two(index.numel()), self.width))
        out = self._buffer[: index.numel()]
        return torch.index_select(self.weight, 0, index, out=out).float()

    def pool(self, index: Tensor, offsets: Tensor) -> Tensor:
        # for a slice of wider rows, embedding_bag would copy the whole weight
        if self.weight.dtype is torch.float32 and self.weight.is_contiguous():
            return pool_rows(self.weight, index, offsets)
        return pool_gathered(self.gather(index), offsets)


class QuantizedRows(nn.Module):
    """int8 or int4 rows: uint8 [rows, 3 + width * bits / 8]."""

    def __init__(self, packed: Tensor, precision: Precision) -> None:
        super().__init__()
        self.rows = packed.shape[0]
        self.halves = precision == "int4"
        self.width = (packed.shape[1] - HEAD) * (2 if self.halves else 1)
        self.register_buffer("weight", packed)

    @property
    def device(self) -> torch.device:
        return self.get_buffer("weight").device

    def gather(self, index: Tensor) -> Tensor:
        picked = self.get_buffer("weight").index_select(0, index)
        return dequantize(picked, "int4" if self.halves else "int8")

    def pool(self, index: Tensor, offsets: Tensor) -> Tensor:
        return pool_gathered(self.gather(index), offsets)


class ComputedRows:
    """Computed vectors of a batch, float32 [n, width], as a `Source`."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def gather(self, index: Tensor) -> Tensor:
        return self._rows.index_select(0, index)

    def pool(self, index: Tensor, offsets: Tensor) -> Tensor:
        return pool_rows(self._rows, index, offsets)


def dequantize(picked: Tensor, precision: Precision) -> Tensor:
    """Decodes packed int8 or int4 rows, uint8 [n, 3 + width * bits / 8], to float32 [n, width]."""
    # flatten before the view: torch considers a single row contiguous whatever its stride
    scale = picked[:, :2].reshape(-1).view(torch.bfloat16).float().unsqueeze(1)
    numbers = picked[:, HEAD:]
    if precision == "int4":
        numbers = torch.stack((numbers & 15, numbers >> 4), dim=2).flatten(1)
    return (numbers.float() - picked[:, 2:HEAD].float()).mul_(scale)


def open_rows(weight: Tensor, precision: Precision) -> FloatRows | QuantizedRows:
    """Opens a store over rows in a bundle's stored format."""
    return FloatRows(weight) if precision in ("fp32", "bf16") else QuantizedRows(weight, precision)


def quantize(weight: Tensor, precision: Precision, rows_at_once: int = 1 << 18) -> Tensor:
    """Converts float32 rows [rows, width] to the stored format of a precision.

    Raises ValueError for int4 rows of odd width.
    """
    if precision == "fp32":
        return weight
    if precision == "bf16":
        return weight.to(torch.bfloat16)
    if precision == "int4" and weight.shape[1] % 2:
        raise ValueError(f"int4 packs two numbers a byte: a width of {weight.shape[1]} is odd")
    parts = [_pack(part, LEVELS[precision]) for part in torch.split(weight, rows_at_once)]
    return torch.cat(parts) if parts else weight.new_empty((0, HEAD), dtype=torch.uint8)


def _pack(x: Tensor, levels: int) -> Tensor:
    low = x.amin(dim=1, keepdim=True).clamp_max(0.0)
    high = x.amax(dim=1, keepdim=True).clamp_min(0.0)
    # Round with the stored bf16 scale, which is rounded up so that it covers the row's range.
    exact = ((high - low) / levels).clamp_min(torch.finfo(torch.float32).tiny)
    scale = exact.to(torch.bfloat16)
    short = scale.float() < exact
    scale = torch.where(short, (scale.view(torch.int16) + 1).view(torch.bfloat16), scale)
    wide = scale.float()
    zero = (-low / wide).round().clamp(0, levels)
    q = (x / wide + zero).round_().clamp_(0, levels).to(torch.uint8)
    if levels == 15:
        q = q[:, 0::2] | (q[:, 1::2] << 4)
    return torch.cat((scale.view(torch.uint8), zero.to(torch.uint8), q), dim=1).contiguous()


def bytes_per_row(width: int, precision: Precision) -> int:
    """Returns the bytes of one stored row."""
    sizes = {"fp32": 4 * width, "bf16": 2 * width, "int8": width + HEAD, "int4": width // 2 + HEAD}
    return sizes[precision]


def first_columns(rows: Tensor, precision: Precision, width: int) -> Tensor:
    """Returns a view of stored rows with only their first `width` numbers.

    Raises ValueError for int4 rows and an odd width.
    """
    if precision == "int4" and width % 2:
        raise ValueError(f"int4 packs two numbers a byte: a width of {width} is odd")
    numbers = width if precision in ("fp32", "bf16") else bytes_per_row(width, precision)
    return rows[:, :numbers]


def as_index(rows: I64, device: torch.device) -> Tensor:
    """Copies row indices, int64 [n], to a device."""
    return on_device(rows, device)
