"""Which stored rows are sound."""

from __future__ import annotations

from typing import get_args

import numpy as np
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


def test_float32_is_as_sound_as_its_upper_half() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, (20_000, 1), np.uint32)
    limit = np.uint32((127 + MAX_EXPONENT) << 23)
    bits[:4, 0] = limit - 1, limit, limit | 1, limit | 1 << 31
    upper = (bits >> 16).astype(np.uint16).view(np.uint8)
    sound = RowFormat(1, "fp32").sound(bits.view(np.uint8))
    assert sound[:4].tolist() == [True, False, False, False]
    np.testing.assert_array_equal(sound, RowFormat(1, "bf16").sound(upper))
