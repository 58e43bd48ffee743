"""Which stored rows are sound."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.store import quantize
from polyrec.models.tiers.row_format import MAX_EXPONENT, RowFormat


@pytest.mark.parametrize("precision", get_args(Precision))
def test_rows_are_sound_unless_a_number_is_nan_or_near_the_end_of_float32(precision: Precision) -> None:
    row_format = RowFormat(4, precision)
    weight = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    weight[1:3] = torch.tensor([[1e-40, -0.0, 1e9, -1e9], [0.0, 0.0, 0.0, -(2.0 ** (MAX_EXPONENT - 1))]])
    weight[3:6, 1] = torch.tensor([3e38, -3e38, torch.inf])
    stored = quantize(weight, precision).view(torch.uint8).numpy()
    # bf16 NaN in a number, or in the scale
    stored[6, :4] = 0xFF
    assert row_format.sound(stored).tolist() == [True] * 3 + [False] * 4
