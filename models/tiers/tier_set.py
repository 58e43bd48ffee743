"""Groups the open tiers of one bundle, which a stack (to gather) and its writer share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.disk import DiskTier
from polyrec.models.tiers.layout import RowLocations, TierLayout
from polyrec.models.tiers.prefix.prefix import Prefix
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Slab

if TYPE_CHECKING:
    from polyrec.models.tiers.remote.remote import RemoteTier


@dataclass(frozen=True, slots=True)
class TierSet:
    """The open tiers of one bundle's rows; tiers without rows are None.

    device: rows of the device tier [rows, units].
    prefix: rows of host memory that may be released to the disk tier's cache; None if there are none, for
    example because a device reads them.
    """

    layout: TierLayout
    slab: Slab
    device: Tensor | None = None
    disk: DiskTier | None = None
    remote: RemoteTier | None = None
    prefix: Prefix | None = None

    def locate(self, rows: I64) -> RowLocations:
        """Locates rows of the fused weight, int64 [n]."""
        prefix = self.prefix
        ends = prefix.ends if prefix is not None and prefix.released else None
        return RowLocations.locate(self.layout, rows, ends)

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory: rows, slots, page slots, and their index."""
        return self.slab.nbytes + (0 if self.disk is None else self.disk.index_nbytes)

    @property
    def row_format(self) -> RowFormat:
        return self.slab.row_format
