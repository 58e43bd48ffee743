"""Settings of live quality and of its judge."""

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
"""Maximum requests in the window."""
WINDOW_ROWS = 400_000
"""Maximum rows of the window's requests."""
ROUND_REQUESTS = 500
"""Maximum requests scored per round."""


class LiveQualitySettings(Strict):
    """Settings of live quality.

    mode: only measure, or also let the router's values follow. span_s: length of the sliding window. every_s:
    time between rounds. trusted: clients whose labels need no confirmation by others. priority: priority of
    the judge's process, only spare CPU time or like other processes. bound: maximum change of a path's value,
    as a share of the best offline value.
    """

    mode: Mode = "off"
    span_s: Annotated[float, Field(gt=0, le=MAX_SPAN_S)] = 86400.0
    every_s: Annotated[float, Field(gt=0, le=MAX_EVERY_S)] = 60.0
    trusted: tuple[str, ...] = ()
    priority: Priority = "idle"
    bound: Annotated[float, Field(ge=0, le=MAX_BOUND)] = 0.2


class JudgedPath(Strict):
    """A path that the judge scores with. bundle: the bundle's folder. version: the bundle's version."""

    name: str
    bundle: Path
    version: str
    runtime: str
    precision: DensePrecision
    width: int | None


class JudgedCanary(Strict):
    """The canary of a rollout (server/rollout/).

    since_s: Unix time from which requests count, which is when its bundle was made, as it may have been
    trained on earlier ones.
    """

    path: JudgedPath
    since_s: float


class JudgeSettings(Strict):
    """Settings of the judge, sent as JSON.

    folder: folder of the prediction log. reference: path that differences refer to. settle_s: time until
    answers are in the log's files. canary: scored in addition to the paths.
    """

    folder: Path
    paths: tuple[JudgedPath, ...]
    reference: str
    span_s: float
    every_s: float
    settle_s: float
    trusted: tuple[str, ...]
    canary: JudgedCanary | None = None

    @property
    def digest(self) -> str:
        """Digest of the settings; servers with equal settings share a report."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]
