"""Placement of rows: bytes by memory, and for each path the ranks that each tier holds.

Part of a plan; the server fills its tiers by it. Tables are in popularity
order, so a tier is a range of ranks: the device's memory holds the first `device` rows of a table, the
host's the next `host`, the disk the next `disk`, a remote store the last `remote`. For a path on a CPU
the device's own memory is the host's, and `device` is 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from polyrec.models.files import Strict
from polyrec.models.tiers.tier_settings import RemoteStore, TierCuts

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

DIRECTORY = Path("/var/tmp")
"""Default directory of disk tiers; /tmp may be in memory."""


class MemoryUse(Strict):
    """Use of one memory. place: a device's name, or `disk`.

    rows: of tables. cache: of rows on disk. fixed: decoders and dense nets. working: buffers while
    batches execute, and what a process needs whatever it serves.
    """

    place: str
    budget_bytes: Count
    rows_bytes: Count
    cache_bytes: Count = 0
    fixed_bytes: Count = 0
    working_bytes: Count = 0

    @property
    def used_bytes(self) -> int:
        return self.rows_bytes + self.cache_bytes + self.fixed_bytes + self.working_bytes


class TieredBatch(Strict):
    """Expected batch of `rows` rows of a path with rows in tiers.

    memory_ms: with all rows in memory; ms: as they are placed. reads, remote: rows' pages read from the disk
    and rows of the remote store, on average. ahead: reads were started while it was queued.
    """

    rows: Annotated[int, Field(ge=1)]
    memory_ms: Annotated[float, Field(ge=0)]
    ms: Annotated[float, Field(ge=0)]
    reads: Annotated[float, Field(ge=0)] = 0.0
    remote: Annotated[float, Field(ge=0)] = 0.0
    ahead: bool = False


class PlacedPath(Strict):
    """Tiers of one path's rows.

    bytes: of rows, by tier. lookups: share of the look-ups that each tier answers, and the `cache` of the
    disk, by the bundle's own access counts. tables: rows of each by tier, as models/tiers takes them; empty
    where the profile does not say how many rows there are. cache_bytes: of host memory, for that cache.
    batches: expected, for people. cost_from: the path whose measured cuts they are computed from; None: from
    the machine's description.
    """

    path: str
    bytes: dict[str, Count] = Field(default_factory=dict)
    lookups: dict[str, Share] = Field(default_factory=dict)
    tables: dict[str, TierCuts] = Field(default_factory=dict)
    cache_bytes: Count = 0
    batches: tuple[TieredBatch, ...] = ()
    cost_from: str | None = None

    def rows(self, tier: str) -> int:
        """Rows of all tables in one tier."""
        return sum(getattr(cuts, tier) for cuts in self.tables.values())

    def needs_tiers(self, device: str) -> bool:
        """Whether rows lie beyond the own memory of the path's device."""
        return any(self.rows(tier) for tier in TierCuts.model_fields if tier != own_tier(device))


def own_tier(device: str) -> str:
    """The tier that is the device's own memory."""
    return "host" if device == "cpu" else "device"


class Placement(Strict):
    """Memories and paths of a plan, and settings of the disk and remote tiers.

    directory: of the disk tiers' files, DIRECTORY if None; relative to the plan file. remote: the store of
    remote rows. prefetch: whether pages of waiting queries are prefetched. popular_first: whether those with
    rows on disk or in the store are held while these are read. drift_s: seconds between
    reorderings of rows by observed accesses; None: the order stays. drift_every: of so many batches one is
    observed. drift_memory: weight of earlier accesses, in look-ups; None: as many as calibration counted.
    """

    memories: tuple[MemoryUse, ...] = ()
    paths: tuple[PlacedPath, ...]
    directory: Path | None = None
    remote: RemoteStore | None = None
    prefetch: bool = True
    popular_first: bool = False
    drift_s: Seconds | None = None
    drift_every: Annotated[int, Field(ge=1)] = 16
    drift_memory: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the fields that name files or folders of a machine."""
        named = {"directory": self.directory}
        if (store := self.remote) is not None:
            named |= {"password_file": store.password_file, "ca_file": store.ca_file}
        return tuple(name for name, file in named.items() if file is not None)

    def beside(self, folder: Path) -> Placement:
        """Returns a copy with file paths relative to a folder."""
        changed: dict[str, object] = {}
        if self.directory is not None:
            changed["directory"] = folder / self.directory
        if (store := self.remote) is not None:
            files = {"password_file": store.password_file, "ca_file": store.ca_file}
            named = {key: folder / file for key, file in files.items() if file is not None}
            changed["remote"] = store.model_copy(update=named)
        return self.model_copy(update=changed)

    @model_validator(mode="after")
    def _rows_have_a_place(self) -> Placement:
        names = [placed.path for placed in self.paths]
        for placed in self.paths:
            if names.count(placed.path) > 1:
                raise ValueError(f"path '{placed.path}' is placed twice")
            if placed.rows("remote") and self.remote is None:
                raise ValueError(f"path '{placed.path}' has remote rows, but no `remote` store is named")
        return self
