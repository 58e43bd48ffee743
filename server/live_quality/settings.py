"""Settings of live quality, and of its judge."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.files import Strict

Priority = Literal["idle", "normal"]
Mode = Literal["off", "measure", "follow"]
MAX_SPAN_S, MAX_EVERY_S, MAX_BOUND = 1e7, 1e5, 0.5
REQUESTS = 4000
"""Most requests of the window."""
WINDOW_ROWS = 400_000
"""Most rows of the window's requests."""
ROUND_REQUESTS = 500
"""Most requests that are scored in a round."""


class LiveQualitySettings(Strict):
    """Settings of live quality.

    mode: measure only, or let the router's values follow. span_s: length of the sliding window. every_s:
    time between rounds. trusted: clients whose labels need not be confirmed by others. priority: of the
    judge's process: spare time only, or like other processes. bound: most that a path's value moves, as a
    share of the best offline value.
    """

    mode: Mode = "off"
    span_s: Annotated[float, Field(gt=0, le=MAX_SPAN_S)] = 86400.0
    every_s: Annotated[float, Field(gt=0, le=MAX_EVERY_S)] = 60.0
    trusted: tuple[str, ...] = ()
    priority: Priority = "idle"
    bound: Annotated[float, Field(ge=0, le=MAX_BOUND)] = 0.2


class JudgedPath(Strict):
    """A path that the judge scores with. bundle: its folder; version: the bundle's."""

    name: str
    bundle: Path
    version: str
    runtime: str
    precision: DensePrecision
    width: int | None


class JudgedTrial(Strict):
    """A version under trial (server/rollout/): its path, and since when requests count for it, Unix time.

    since_s: when its bundle was made, since it may have learned from the requests before.
    """

    path: JudgedPath
    since_s: float


class JudgeSettings(Strict):
    """Settings of the judge, sent as JSON. folder: of the prediction log. reference: path of the differences.
    settle_s: time until answers are in the log's files. trial: scored beside the paths.
    """

    folder: Path
    paths: tuple[JudgedPath, ...]
    reference: str
    span_s: float
    every_s: float
    settle_s: float
    trusted: tuple[str, ...]
    trial: JudgedTrial | None = None

    @property
    def digest(self) -> str:
        """Identifies the settings: servers with equal ones share a report."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]
