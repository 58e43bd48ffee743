"""Placement of embedding rows: bytes used in each memory, and for each path the ranks that each tier holds.

It is part of a plan, and the server fills its tiers accordingly. Tables are in popularity order, so a tier is
a range of ranks: device memory holds the first `device` rows of a table, host memory the next `host`, the
disk the next `disk`, and a remote store the last `remote`. For a path on a CPU, device memory is host memory
and `device` is 0.
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

    rows: bytes of table rows.
    cache: bytes that cache rows on disk.
    fixed: bytes of decoders and dense nets.
    working: buffers of executing batches, and the basic needs of a process.
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

    memory_ms, ms: time with all rows in memory, and with the rows as placed.
    reads, remote: mean number of pages read from disk and of rows fetched from the remote store.
    ahead: whether reads were started while the batch was queued.
    """

    rows: Annotated[int, Field(ge=1)]
    memory_ms: Annotated[float, Field(ge=0)]
    ms: Annotated[float, Field(ge=0)]
    reads: Annotated[float, Field(ge=0)] = 0.0
    remote: Annotated[float, Field(ge=0)] = 0.0
    ahead: bool = False


class PlacedPath(Strict):
    """Tiers of one path's rows.

    bytes: bytes of rows by tier.
    lookups: share of lookups answered by each tier, and by the disk's `cache`, by the bundle's access
        counts.
    tables: rows of each table by tier, as models/tiers expects them; empty if the profile lacks row counts.
    cache_bytes: host memory for the disk's cache.
    batches: expected batch times, for people.
    cost_from: path whose measurements they are based on; None if based on the machine's description.
    """

    path: str
    bytes: dict[str, Count] = Field(default_factory=dict)
    lookups: dict[str, Share] = Field(default_factory=dict)
    tables: dict[str, TierCuts] = Field(default_factory=dict)
    cache_bytes: Count = 0
    batches: tuple[TieredBatch, ...] = ()
    cost_from: str | None = None

    def rows(self, tier: str) -> int:
        """Returns the rows of all tables in one tier."""
        return sum(getattr(cuts, tier) for cuts in self.tables.values())

    def needs_tiers(self, device: str) -> bool:
        """Whether some rows are outside the memory of the path's device."""
        return any(self.rows(tier) for tier in TierCuts.model_fields if tier != own_tier(device))


def own_tier(device: str) -> str:
    """Returns the tier that is a device's own memory."""
    return "host" if device == "cpu" else "device"


class Placement(Strict):
    """Memories and paths of a plan, and settings of the disk and remote tiers.

    directory: folder of the disk tiers' files, relative to the plan file; None for DIRECTORY.
    remote: the store of remote rows.
    prefetch: whether to prefetch disk pages of waiting queries.
    popular_first: whether to hold queries while their rows are read from disk or the store.
    drift_s: seconds between reorderings of rows by observed accesses; None keeps the order.
    drift_every: one of this many batches is observed.
    drift_memory: weight of earlier accesses in lookups; None for as many as calibration counted.
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
        """Returns the names of fields that contain files or folders of a machine."""
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
