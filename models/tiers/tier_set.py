"""The open tiers of one bundle, shared by a stack, which gathers, and its writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from polyrec.models.tiers.disk.disk import DiskTier
from polyrec.models.tiers.layout import TierLayout
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Slab

if TYPE_CHECKING:
    from polyrec.models.tiers.remote.remote import RemoteTier


@dataclass(frozen=True, slots=True)
class TierSet:
    """device: rows of the device tier [rows, units]. Tiers without rows are None."""

    layout: TierLayout
    slab: Slab
    device: Tensor | None = None
    disk: DiskTier | None = None
    remote: RemoteTier | None = None

    @property
    def row_format(self) -> RowFormat:
        return self.slab.row_format
