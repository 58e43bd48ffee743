"""Typed requests and responses of the admin calls of a rollout."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from polyrec.models.fetching.url import ModelPlace
from polyrec.models.files import Strict
from polyrec.planner.rollout.decision import RolloutBounds, RolloutDecision
from polyrec.server.http.documents import Document

CanaryShare = Annotated[float, Field(strict=True, ge=0, le=0.5, allow_inf_nan=False)]
"""Share of a canary. At most half, so that the stable version has as many requests to compare; 0: shadow."""
RolloutOutcome = Literal["promoted", "rolled_back"]


class StartRequest(Strict):
    """Starts a rollout: another version answers a share of the requests.

    plan: a plan file, or the folder of a bundle, on the server or by URL. share: of the requests, or of the
    values of `by`. by: a single-valued context feature, or `header:NAME`; each of its values gets one
    version; null: requests are split one by one. shadow: share of the stable version's requests that the
    canary answers as well, in spare time, to compare the answers.
    """

    plan: ModelPlace
    share: CanaryShare = 0.05
    shadow: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = 0.1
    by: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    bounds: RolloutBounds = RolloutBounds()

    @model_validator(mode="after")
    def _gets_requests(self) -> StartRequest:
        if not (self.share or self.shadow):
            raise ValueError("share and shadow are 0: the version would get no request")
        return self


class ShareRequest(Strict):
    """Changes the canary's share. With `by`, a larger share keeps the values of a smaller one."""

    share: CanaryShare


class EndRequest(Strict):
    """Ends a rollout. reason: for log and status."""

    reason: Annotated[str, Field(max_length=200)] = "by the operator's call"


class RolloutDocument(Document):
    """A rollout in progress.

    stable_version, canary_version: of the bundles. began: Unix time. decision: the last one; null in the
    first second. lanes_alive: lanes of the canary that are in service. plan: without its folder.
    """

    state: Literal["running", "promoting"]
    stable_version: str
    canary_version: str
    plan: str
    share: float
    shadow: float
    by: str | None
    began: float
    bounds: RolloutBounds
    lanes_alive: int
    decision: RolloutDecision | None


class EndedRollout(Document):
    """A rollout that ended. decision: the last one before the end."""

    outcome: RolloutOutcome
    reason: str
    stable_version: str
    canary_version: str
    plan: str
    began: float
    ended: float
    decision: RolloutDecision | None


class RolloutStatus(Document):
    """The rollout of a model in progress, if any, and the last ones, newest first."""

    model: str
    rollout: RolloutDocument | None
    ended: list[EndedRollout]
