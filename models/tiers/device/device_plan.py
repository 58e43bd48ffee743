"""Where look-ups lie, found out on the device: rows of the fused weight in, the kernel's codes out.

For models whose rows are all in device and host memory. A tier is a range of ranks, so a code is a line
within each range: a row of the device tier is row + shift, one of host memory -1 - its address. A processor
takes ten nanoseconds a look-up for it, which is more than a GPU takes for the look-up itself.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyrec.models.tiers.layout import DEVICE, DISK, HOST, REMOTE, TierLayout
from polyrec.models.tiers.slab import Slab


class DevicePlan:
    """The lines of a layout, on a device."""

    def __init__(self, layout: TierLayout, slab: Slab, device: torch.device) -> None:
        if not can_plan(layout):
            raise ValueError("rows beyond host memory have no fixed place")
        near = layout.tier == DEVICE
        shift = layout.local(np.zeros_like(layout.starts), np.arange(layout.starts.size))
        step = int(slab.of_rows(np.ones(1, np.int64))[0])
        self._starts = torch.from_numpy(layout.starts).to(device)
        self._factor = torch.from_numpy(np.where(near, 1, -step)).to(device)
        self._shift = torch.from_numpy(np.where(near, shift, -1 - shift * step)).to(device)
        self._ranges = torch.arange(layout.starts.size, device=device)

    def codes(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows: int64 [n] -> (codes as kernels.pool takes them, int64 [n]; look-ups of each range)."""
        part = torch.searchsorted(self._starts, rows, right=True) - 1
        codes = torch.addcmul(self._shift[part], rows, self._factor[part])
        # bincount would wait for the device
        return codes, (part.unsqueeze(0) == self._ranges.unsqueeze(1)).sum(dim=1)


def can_plan(layout: TierLayout) -> bool:
    """Whether every row has a fixed place in device or host memory."""
    return layout.rows[DISK] + layout.rows[REMOTE] == 0 and layout.rows[DEVICE] + layout.rows[HOST] > 0
