"""Locates lookups on the device: converts rows of the fused weight to the kernel's row codes.

Requires that all rows are in device and host memory. A tier is a range of ranks, so within a range a code is
a linear function of the row: row + shift in the device tier, -1 - address in host memory. The same
computation takes ten nanoseconds per lookup on the CPU, longer than the lookup itself takes on a GPU.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyrec.models.tiers.layout import DEVICE, DISK, HOST, REMOTE, TierLayout
from polyrec.models.tiers.slab import Slab


class DevicePlan:
    """Holds the linear functions of a layout's ranges, on a device."""

    def __init__(self, layout: TierLayout, slab: Slab, device: torch.device) -> None:
        if not can_plan(layout):
            raise ValueError("rows beyond host memory have no fixed address")
        near = layout.tier == DEVICE
        shift = layout.local(np.zeros_like(layout.starts), np.arange(layout.starts.size))
        step = int(slab.row_addresses(np.ones(1, np.int64))[0])
        self._starts = torch.from_numpy(layout.starts).to(device)
        self._factor = torch.from_numpy(np.where(near, 1, -step)).to(device)
        self._shift = torch.from_numpy(np.where(near, shift, -1 - shift * step)).to(device)
        self._ranges = torch.arange(layout.starts.size, device=device)

    def codes(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (codes for kernels.pool, int64 [n]; lookups of each range). rows: int64 [n]."""
        part = torch.searchsorted(self._starts, rows, right=True) - 1
        codes = torch.addcmul(self._shift[part], rows, self._factor[part])
        # unlike bincount, this does not synchronize with the device
        return codes, (part.unsqueeze(0) == self._ranges.unsqueeze(1)).sum(dim=1)


def can_plan(layout: TierLayout) -> bool:
    """Returns whether every row has a fixed address in device or host memory."""
    return layout.rows[DISK] + layout.rows[REMOTE] == 0 and layout.rows[DEVICE] + layout.rows[HOST] > 0
