from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.device.device_plan import DevicePlan, can_plan
from polyrec.models.tiers.layout import DEVICE, TierLayout
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Slab

CUTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5)


@given(cuts=CUTS, seed=st.integers(0, 100), precision=st.sampled_from(["fp32", "bf16", "int8"]))
def test_the_devices_codes_are_the_layouts_places(
    cuts: list[tuple[int, int]], seed: int, precision: str
) -> None:
    cuts = [*cuts, (1, 1)]
    sizes = {f"t{i}": near + far for i, (near, far) in enumerate(cuts)}
    layout = TierLayout(sizes, {f"t{i}": (*cut, 0, 0) for i, cut in enumerate(cuts)})
    slab = Slab(RowFormat(12, precision), layout.rows[1], 0, 4096)  # type: ignore[arg-type]
    rows = np.random.default_rng(seed).integers(0, layout.total, 40)
    codes, counts = DevicePlan(layout, slab, torch.device("cpu")).codes(torch.from_numpy(rows))
    tier, local = layout.locate(rows)
    np.testing.assert_array_equal(
        codes.numpy(), np.where(tier == DEVICE, local, -1 - slab.row_addresses(local))
    )
    wanted = np.bincount(layout.segments(rows), minlength=layout.starts.size)
    np.testing.assert_array_equal(counts.numpy(), wanted)


def test_rows_beyond_host_memory_are_not_the_devices_to_place() -> None:
    layout = TierLayout({"t": 10}, {"t": (3, 3, 4, 0)})
    assert not can_plan(layout)
    with pytest.raises(ValueError, match="no fixed address"):
        DevicePlan(layout, Slab(RowFormat(4, "fp32"), 3, 1, 4096), torch.device("cpu"))
