"""The data of the status page, as `GET /v1/status` returns them."""

from __future__ import annotations

from polyrec.planner.quality import QualityMetric
from polyrec.server.http.documents import Document, PathsResponse, StateName
from polyrec.server.live_quality.feature_drift import DriftDocument
from polyrec.server.live_quality.report import LiveQualityDocument
from polyrec.server.metrics.events import EventKind


class StatusSample(Document):
    """Cumulative counts at one moment.

    t: seconds since the start. outcomes: requests by outcome. rows: by path, answered late and in time.
    degraded: answers by reason. latency: answers by bucket of `edges_s`, the last beyond all edges. tiers:
    lookups and hits by tier. waited_s: time that the event loop waited for a processor.
    """

    t: float
    outcomes: dict[str, float]
    rows: dict[str, tuple[float, float]]
    degraded: dict[str, float]
    latency: list[int]
    tiers: dict[str, tuple[float, float]]
    waited_s: float
    queue_rows: int
    budget_s: float


class ErrorBudgetDocument(Document):
    """The SLO's error budget since the server's start.

    used: share of the budget. burn_rates: by window, missed requests over allowed ones; 1 uses the budget
    exactly. Null while the budget is less than one request.
    """

    used: float | None
    burn_rates: dict[str, float | None]


class EventDocument(Document):
    """An event of the server. t: seconds since the server's start."""

    t: float
    kind: EventKind
    text: str


class RolloutSummary(Document):
    """A rollout in progress. reason: of the last decision; is_short: too few comparisons to judge by."""

    canary_version: str
    share: float
    age_s: float
    reason: str
    is_short: bool


class StatusResponse(Document):
    """Data of the status page.

    promised_share: the SLO. broken: outcomes that count against it. generation: number of plans put into
    service so far. metric: of the paths' quality; null, like `serving`, while the server loads. live_quality:
    null without a report. feature_drift: one report per bundle. rollout: null without one, and in its first
    second. events: the latest, oldest first. now: a sample taken at `unix_time`. history: earlier samples,
    oldest first.
    """

    state: StateName
    version: str
    model: str | None
    promised_share: float
    outcomes: list[str]
    broken: list[str]
    default_budget_s: float
    generation: float
    edges_s: list[float]
    metric: QualityMetric | None
    error_budget: ErrorBudgetDocument
    events: list[EventDocument]
    lane_deaths: dict[str, float]
    serving: PathsResponse | None
    live_quality: LiveQualityDocument | None
    feature_drift: list[DriftDocument]
    rollout: RolloutSummary | None
    unix_time: float
    now: StatusSample
    history: list[StatusSample]
