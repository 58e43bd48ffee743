"""The tiers of one bundle, opened and filled: what a stack gathers from and its writer writes to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polyrec.models.tiers.disk.disk import DiskTier
from polyrec.models.tiers.layout import TierLayout
from polyrec.models.tiers.remote.remote import RemoteTier
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Slab


@dataclass(frozen=True, slots=True)
class TierSet:
    """device: rows of the device tier [rows, units], None if there is none; disk, remote: None where no row
    lies there."""

    layout: TierLayout
    slab: Slab
    device: Tensor | None = None
    disk: DiskTier | None = None
    remote: RemoteTier | None = None

    @property
    def row_format(self) -> RowFormat:
        return self.slab.row_format
