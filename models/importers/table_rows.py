"""Reads the rows of a checkpoint's table piece by piece, as one float vector per id.

Everything that a foreign model does to a row between lookup and pooling becomes part of the row: a learned
weight per id, a projection to the model's width, a quantized format. Sums and means of rows commute with all
of these. Reading in pieces keeps the memory of an import near that of the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from polyrec.models.importers.checkpoint import FLOATS, CheckpointWeights

ROW_ALIGNMENT = 16
"""Bytes that TorchRec aligns quantized rows to, by default."""
HEADER = 4
"""Bytes before the numbers of a quantized row: scale and bias, both fp16."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """One table. read: takes the first and last row (exclusive), returns float [rows, width]."""

    rows: int
    width: int
    read: Callable[[int, int], Tensor]


def float_rows(weight: Tensor) -> TableRows:
    """Returns the rows of a float tensor [rows, width]."""
    return TableRows(weight.shape[0], weight.shape[1], lambda first, last: weight[first:last])


def scaled(table: TableRows, weight: Tensor) -> TableRows:
    """Multiplies each row by its weight, [rows]."""
    return TableRows(
        table.rows,
        table.width,
        lambda first, last: table.read(first, last).float() * weight[first:last, None].float(),
    )


def projected(table: TableRows, projection: Tensor) -> TableRows:
    """Multiplies each row by a projection [new width, width], in float64."""
    by = projection.double().T
    return TableRows(
        table.rows, projection.shape[0], lambda first, last: table.read(first, last).double() @ by
    )


def padded(table: TableRows, width: int) -> TableRows:
    """Appends zeros to each row, up to a width."""
    more = width - table.width
    return TableRows(table.rows, width, lambda first, last: F.pad(table.read(first, last), (0, more)))


def quantized_rows(
    weights: CheckpointWeights, name: str, width: int, precision: str | None = None
) -> TableRows:
    """Takes a table that TorchRec quantized to int8 or int4, and decodes it to float32 without loss.

    name: of the table's module. width: numbers per row. precision: `int8` or `int4`; None: the one that fits
    the row's bytes. A row is an fp16 scale, an fp16 bias, and numbers q of 8 bits, or of 4 bits with the
    lower half of a byte first, padded to a multiple of ROW_ALIGNMENT bytes; x = scale * q + bias (fbgemm's
    IntNBitTableBatchedEmbeddingBagsCodegen). Scales and biases may also be separate tensors (`weight_qscale`,
    `weight_qbias`). Raises CheckpointError if the bytes do not have this layout.
    """
    packed = weights.take(f"{name}.weight", 2, check_finite=False, dtypes=(torch.uint8,))
    rows, columns = packed.shape
    header = HEADER if weights.dtype(f"{name}.weight_qscale") is None else 0
    numbers = {"int8": width, "int4": -(-width // 2)}
    padded_to = {p: -(-(header + n) // ROW_ALIGNMENT) * ROW_ALIGNMENT for p, n in numbers.items()}
    fits = [p for p, n in numbers.items() if columns in (header + n, padded_to[p] if header else header + n)]
    chosen = [p for p in fits if precision in (None, p)]
    if not chosen:
        sizes = " and ".join(f"{header + n} in {p}" for p, n in numbers.items())
        raise weights.error(
            f"{name}.weight has {columns} bytes a row; {width} numbers take {sizes}"
            + (f", or the next multiple of {ROW_ALIGNMENT}" if header else "")
        )
    if len(chosen) > 1:
        raise weights.error(
            f"{name}.weight has {columns} bytes a row, which {width} numbers take in int8 and in int4: "
            "say which with --quantized"
        )
    beside = None
    if not header:
        beside = tuple(_halves(weights, f"{name}.weight_{which}", rows) for which in ("qscale", "qbias"))
    count = numbers[chosen[0]]

    def read(first: int, last: int) -> Tensor:
        some = packed[first:last]
        if beside is None:
            halves = some[:, :HEADER].contiguous().view(torch.float16).float()
            scale, bias = halves[:, :1], halves[:, 1:]
        else:
            scale, bias = (half[first:last].float() for half in beside)
        q = some[:, header : header + count]
        if chosen[0] == "int4":
            q = torch.stack((q & 15, q >> 4), dim=2).flatten(1)[:, :width]
        return q.float() * scale + bias

    return TableRows(rows, width, read)


def _halves(weights: CheckpointWeights, name: str, rows: int) -> Tensor:
    """Takes a column of fp16 numbers, [rows, 1], which may be saved as bytes."""
    column = weights.take(name, 2, dtypes=(*FLOATS, torch.uint8))
    if column.dtype is torch.uint8 and column.shape[1] == 2:
        column = column.contiguous().view(torch.float16)
    if column.shape != (rows, 1) or not column.dtype.is_floating_point:
        raise weights.error(f"{name} has shape {list(column.shape)}; expected one fp16 number for each row")
    return column
