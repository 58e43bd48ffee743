"""The rows of one batch, found by the process that holds their tiers, for one that maps its slab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.slab import Bytes

if TYPE_CHECKING:
    from polyrec.models.tiers.releasing import Gathers


@dataclass(frozen=True, slots=True)
class Found:
    """addresses: int64 [n], in the slab. at: int64 [m], which of the rows are not there; values: uint8
    [m, bytes of a row], theirs: updated rows, rows on disk and in the remote store.
    """

    addresses: I64
    at: I64
    values: Bytes


@dataclass(frozen=True, slots=True)
class Resolved(Found):
    """The result of `TierStack.resolve`, to be released when the other process has read it.

    lost: number of rows that the remote store did not answer.
    """

    lost: int
    gathers: Gathers
    number: int

    def release(self) -> None:
        """Lets the tiers move these rows again; a second call does nothing."""
        self.gathers.end(self.number)


NOTHING_FOUND = Found(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 0), np.uint8))
