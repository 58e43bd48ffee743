"""Describes the format of stored rows: their bytes, the dtype they are moved as, and their decoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.store import bytes_per_row, dequantize
from polyrec.models.powers import next_power_of_two

MAX_EXPONENT = 40
"""Power of two that numbers and scales stay below: far beyond trained rows, and their products are finite."""
_UNITS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.uint8, "int4": torch.uint8}


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Rows of `width` numbers in one precision, as stored by polyrec.models.embeddings.store."""

    width: int
    precision: Precision

    @property
    def bytes(self) -> int:
        return bytes_per_row(self.width, self.precision)

    @property
    def unit(self) -> torch.dtype:
        """The dtype used to move a row's bytes."""
        return _UNITS[self.precision]

    @property
    def units(self) -> int:
        """Units per row."""
        return self.bytes // self.unit.itemsize

    def buffer(self, rows: int, device: torch.device | None = None) -> Tensor:
        """Allocates a buffer of at least `rows` rows, [more, units], in host memory or on a device.

        The size is a power of two, so that buffers rarely need to grow again.
        """
        shape = (next_power_of_two(rows), self.units)
        with torch.inference_mode(False):  # otherwise it could only be written in inference mode
            return torch.empty(shape, dtype=self.unit, device=device)

    def decode(self, rows: Tensor) -> Tensor:
        """Decodes [n, units] to float32 [n, width], bit-identical to the untiered store."""
        if self.precision == "fp32":
            return rows
        return rows.float() if self.precision == "bf16" else dequantize(rows, self.precision)

    def sound(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Returns which rows have only numbers below 2 ** MAX_EXPONENT, bool [n].

        Of quantized rows, checks the scale. NaN and numbers near the end of float32 would make every answer
        with such a row an error. rows: uint8 [n, bytes].
        """
        magnitude, most = 0x7FFF, (127 + MAX_EXPONENT) << 7
        numbers: NDArray[np.uint16] | NDArray[np.uint32]
        if self.precision == "fp32":
            numbers, magnitude, most = rows.view(np.uint32), 0x7FFFFFFF, most << 16
        elif self.precision == "bf16":
            numbers = rows.view(np.uint16)
        else:
            numbers = np.ascontiguousarray(rows[:, :2]).view(np.uint16)
        # without the sign, bits ascend with magnitude, and NaN's are the greatest
        below: NDArray[np.bool_] = (numbers & magnitude) < most
        found: NDArray[np.bool_] = np.logical_and.reduce(below, axis=1)
        return found
