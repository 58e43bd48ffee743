"""Settings of the tiers of one path: cuts by table, and the parameters of each tier."""

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
StoreUrl = Annotated[str, Field(pattern=r"^(rediss?|unix)://.+")]


class TierCuts(Strict):
    """Rows of one table in each tier, hottest first."""

    device: Count = 0
    host: Count = 0
    disk: Count = 0
    remote: Count = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """In the order of polyrec.models.tiers.layout.TIERS."""
        return (self.device, self.host, self.disk, self.remote)


class RemoteStore(Strict):
    """A Redis server, or a Redis Cluster by any of its servers; which of them is detected.

    url: redis://[user@]host[:port][/database], rediss:// for TLS, or unix:///path.
    password: of that user, from the server's settings; never shown or written. password_file: contains it
    instead.
    ca_file: CA certificates (PEM) for rediss://, besides the system's. Both files are relative to the plan
    file. A password in the URL works as well.

    timeout_ms: maximum wait of a batch for its rows. prefix: of every key, followed by the table, a colon and
    the stable id in twelve digits. fill: whether rows are written when the tiers are opened (unless, say,
    another server has written them).
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
    """Tiers of one path's rows. A table that `cuts` does not name is in host memory.

    cache_bytes: of host memory, for the disk tier's cache and its index. cached: least share of the cache in
    the memory of tables with rows on disk; if `cache_bytes` is less, it gets the memory of the coldest of
    their host rows. 0: as the cuts say. directory: folder of a local disk for the disk
    tier's file, which exists while it is served. reader: of that file; None: io_uring where the kernel allows
    it, else threads. shared: whether other processes can map the host rows (slab.py), for lanes in processes.
    """

    cuts: dict[str, TierCuts] = Field(default_factory=dict)
    cache_bytes: Annotated[int, Field(ge=PAGE_BYTES)] = 64 * 2**20
    cached: Annotated[float, Field(ge=0, le=1)] = CACHED
    directory: Path | None = None
    reader: Literal["io_uring", "threads"] | None = None
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
