"""Defines the settings of one path's tiers: cuts by table, and the parameters of each tier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_serializer, model_validator

from polyrec.models.files import Strict

PAGE_BYTES = 4096
"""Page size of disks and memory; longer rows take several pages."""

CACHED = 0.5
"""Least share of the memory of tables with rows on disk that is cache when tiers open: a longer static prefix
loses more where calibration is wrong than it gains where it is right (docs/results/tier-policies.md).
"""

Count = Annotated[int, Field(ge=0)]
ReaderKind = Literal["io_uring", "threads"]
StoreUrl = Annotated[str, Field(pattern=r"^(rediss?|unix)://.+")]


class TierCuts(Strict):
    """Rows of one table in each tier, hottest first."""

    device: Count = 0
    host: Count = 0
    disk: Count = 0
    remote: Count = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Returns the rows in the order of polyrec.models.tiers.layout.TIERS."""
        return (self.device, self.host, self.disk, self.remote)


class RemoteStore(Strict):
    """A Redis server, or a Redis Cluster given by any of its servers; which of the two is detected.

    url: redis://[user@]host[:port][/database], rediss:// for TLS, or unix:///path. It may contain the
    password.
    password: the user's password, from the server's settings; never displayed or written.
    password_file: file that contains the password instead, relative to the plan file.
    ca_file: CA certificates (PEM) for rediss:// in addition to the system's, relative to the plan file.
    timeout_ms: maximum time that a batch waits for its rows.
    prefix: prefix of every key; the bundle's version, the table and the stable id in twelve digits follow,
    with colons between.
    fill: whether to write the rows when the tiers are opened (not needed if, for example, another server
    wrote them).
    """

    url: StoreUrl = "redis://127.0.0.1:6379"
    password: SecretStr | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    timeout_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    prefix: str = "polyrec:"
    fill: bool = False

    @field_serializer("password", when_used="json")
    def _never_written(self, _: SecretStr | None) -> None:
        return None


class TierSettings(Strict):
    """Tiers of one path's rows. Tables that `cuts` does not name are in host memory.

    cache_bytes: host memory for the disk tier's cache and its index.
    cached: minimum share of the cache in the memory of tables with rows on disk. If `cache_bytes` is less,
    the cache gets the memory of their coldest host rows. 0: host rows stay as the cuts say.
    directory: folder on a local disk for the disk tier's file, which exists while it is served.
    reader: how the file is read; None: io_uring if the kernel allows it, else threads.
    shared: whether other processes can map the host rows (slab.py), for lanes in processes.
    """

    cuts: dict[str, TierCuts] = Field(default_factory=dict)
    cache_bytes: Annotated[int, Field(ge=PAGE_BYTES)] = 64 * 2**20
    cached: Annotated[float, Field(ge=0, le=1)] = CACHED
    directory: Path | None = None
    reader: ReaderKind | None = None
    huge_pages: bool = True
    shared: bool = False
    remote: RemoteStore | None = None

    @model_validator(mode="after")
    def _tiers_are_there(self) -> TierSettings:
        for table, cuts in self.cuts.items():
            if cuts.remote and self.remote is None:
                raise ValueError(f"table '{table}' has remote rows, but no `remote` store is named")
            if cuts.disk and self.directory is None:
                raise ValueError(f"table '{table}' has rows on disk, but no `directory` is named")
        return self
