"""The open tiers of one bundle, shared by a stack, which gathers, and its writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.disk import DiskTier
from polyrec.models.tiers.layout import RowLocations, TierLayout
from polyrec.models.tiers.prefix import Prefix
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Slab

if TYPE_CHECKING:
    from polyrec.models.tiers.remote.remote import RemoteTier


@dataclass(frozen=True, slots=True)
class TierSet:
    """The tiers of one bundle's rows, opened.

    device: rows of the device tier [rows, units]. Tiers without rows are None. prefix: the rows of host
    memory that may be released to the disk tier's cache; None: none, as where a device reads them.
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
        return RowLocations.of(self.layout, rows, ends)

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory: rows, slots, page slots, and their index."""
        return self.slab.nbytes + (0 if self.disk is None else self.disk.index_nbytes)

    @property
    def row_format(self) -> RowFormat:
        return self.slab.row_format
