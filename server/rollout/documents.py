"""Typed requests and responses of the rollout admin calls. Docstrings appear in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from polyrec.models.fetching.url import ModelPlace
from polyrec.models.files import Strict
from polyrec.planner.rollout.decision import RolloutBounds, RolloutDecision
from polyrec.server.http.documents import Document

CanaryShare = Annotated[float, Field(strict=True, ge=0, le=0.5, allow_inf_nan=False)]
"""A canary's share: at most half, so that the stable version has enough requests to compare; 0: shadow."""
RolloutOutcome = Literal["promoted", "rolled_back"]


class StartRequest(Strict):
    """Starts a rollout: another version answers a share of the requests.

    plan: a plan file or a bundle folder, on the server or by URL.
    share: the canary's share of the requests, or of the values of `by`.
    by: a single-valued context feature or `header:NAME`; all requests with the same value get the same
        version. null splits requests individually.
    shadow: share of the stable version's requests that the canary repeats in spare time, to compare answers.
    compare_per_s: maximum number of requests a second that it repeats whatever the load, unless shadow is 0.
    """

    plan: ModelPlace
    share: CanaryShare = 0.05
    shadow: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = 0.1
    compare_per_s: Annotated[float, Field(strict=True, ge=0, le=50, allow_inf_nan=False)] = 10.0
    by: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    bounds: RolloutBounds = RolloutBounds()

    @model_validator(mode="after")
    def _has_share_or_shadow(self) -> StartRequest:
        if not (self.share or self.shadow):
            raise ValueError("share and shadow are 0: the version would get no request")
        return self


class ShareRequest(Strict):
    """Changes the canary's share. With `by`, a larger share includes the values of a smaller one."""

    share: CanaryShare


class EndRequest(Strict):
    """Ends a rollout. reason: appears in log and status."""

    reason: Annotated[str, Field(max_length=200)] = "by the operator's call"


class RolloutDocument(Document):
    """A rollout in progress.

    stable_version, canary_version: versions of the bundles.
    began: Unix time. age_s: seconds since then, whatever was done to the wall clock.
    decision: the last decision; null in the first second.
    lanes_alive: number of the canary's live lanes.
    plan: the canary's plan file, without its folder.
    changes: what else a promotion changes, such as fewer paths.
    """

    state: Literal["running", "promoting"]
    stable_version: str
    canary_version: str
    plan: str
    share: float
    shadow: float
    compare_per_s: float
    by: str | None
    began: float
    age_s: float
    bounds: RolloutBounds
    lanes_alive: int
    changes: list[str]
    decision: RolloutDecision | None


class EndedRollout(Document):
    """A rollout that ended.

    began, ended: Unix times. lasted_s: seconds between, whatever was done to the wall clock.
    changes: what else the promotion changed, such as row updates that the version lacks; otherwise empty.
    decision: the last decision before the end.
    """

    outcome: RolloutOutcome
    reason: str
    stable_version: str
    canary_version: str
    plan: str
    began: float
    ended: float
    lasted_s: float
    changes: list[str]
    decision: RolloutDecision | None


class RolloutStatus(Document):
    """A model's rollout in progress, if any, and its last ended ones, newest first."""

    model: str
    rollout: RolloutDocument | None
    ended: list[EndedRollout]
