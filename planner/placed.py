"""Where every row of a plan lives: bytes by device, and by path the ranks that each tier holds.

A plan carries it for the server to fill its tiers by, and for people to read. Tables are in popularity
order, so a tier is a range of ranks: the device's memory holds the first `device` rows of a table, the
host's the next `host`, the disk the next `disk`, a remote store the last `remote`. For a path on a CPU
the device's own memory is the host's, and `device` is 0.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.embeddings.tiers.placement import TierCuts
from models.schema import Strict

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class MemoryUse(Strict):
    """What a plan puts into one memory, of how much. place: a device's name, or `disk`.

    rows: of tables. fixed: decoders and dense nets. working: buffers while batches execute, and what a
    process needs whatever it serves.
    """

    place: str
    budget_bytes: Count
    rows_bytes: Count
    fixed_bytes: Count = 0
    working_bytes: Count = 0

    @property
    def used_bytes(self) -> int:
        return self.rows_bytes + self.fixed_bytes + self.working_bytes


class PlacedPath(Strict):
    """Where the rows of one path are.

    bytes: of rows, by tier. lookups: share of the look-ups that each tier answers, by the bundle's own
    access counts. tables: rows of each by tier, as models/embeddings/tiers takes them; empty where the
    profile does not say how many rows there are.
    """

    path: str
    bytes: dict[str, Count]
    lookups: dict[str, Share]
    tables: dict[str, TierCuts] = Field(default_factory=dict)


class Placement(Strict):
    """All memories that a plan uses, and all its paths."""

    memories: tuple[MemoryUse, ...]
    paths: tuple[PlacedPath, ...]
