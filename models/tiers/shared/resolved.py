"""Describes where one batch's rows are, for a process that maps the slab of the process with the tiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.slab import Bytes

if TYPE_CHECKING:
    from polyrec.models.tiers.gathers import Gathers


@dataclass(frozen=True, slots=True)
class ResolvedRows:
    """Rows of a batch, by address or by value.

    addresses: int64 [n], addresses in the slab.
    at: int64 [m], indices of rows that are not in the slab: updated rows, rows on disk and in the remote
    store.
    values: uint8 [m, bytes per row], the values of these.
    """

    addresses: I64
    at: I64
    values: Bytes


@dataclass(frozen=True, slots=True)
class Resolved(ResolvedRows):
    """The result of `TierStack.resolve`, to be released when the other process has read it.

    lost: number of rows that the remote store did not return.
    """

    lost: int
    gathers: Gathers
    number: int

    def release(self) -> None:
        """Lets the tiers move these rows again; calling it twice has no effect."""
        self.gathers.end(self.number)


NOTHING_FOUND = ResolvedRows(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 0), np.uint8))
