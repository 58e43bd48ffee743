"""Typed models of requests and responses, from which the OpenAPI document is generated.

Serving does not use them: `server/codecs` parses bodies, and responses are written directly.
tests/server/http/test_openapi.py compares them with real requests and responses. Models of the Open Inference
Protocol are in `server/http/oip_documents.py`, those of the status page in its folder; models of admin
requests are next to the calls, which do parse with them. Docstrings here become descriptions in the document.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic.json_schema import SkipJsonSchema

from polyrec.models.schema.schema import Schema
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import BudgetMs
from polyrec.planner.routing.explain import RouterSnapshot
from polyrec.planner.routing.query import MAX_PRIORITY

Quality = Literal["any", "required"]
DegradedReason = Literal["load", "deadline", "failure", "probe"]
StateName = Literal["loading", "ready", "draining"]
Absent = SkipJsonSchema[None]
"""Marks a key or parameter that may be left out but is never null."""


class Document(BaseModel):
    """Base of the models."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FeatureValue(RootModel[str | float | list[str] | list[int] | None]):
    """A number, an id or a list of ids; null for a missing value."""


class FeatureRow(RootModel[dict[str, FeatureValue]]):
    """A row: values by feature name, as in the schema. Omitted features are missing values."""


class FeatureColumns(RootModel[dict[str, list[FeatureValue] | None]]):
    """Rows: by feature name, a list with one value per row; all lists have the same length."""


class Error(Document):
    """The body of every error: one line that names the problem and the remedy."""

    error: str


# Parameters


class OptionHeaders(BaseModel):
    """Per-request options (`server/http/options.py`)."""

    budget_ms: Annotated[
        BudgetMs | Absent,
        Field(
            alias="X-Latency-Budget-Ms",
            description="Latency budget in milliseconds, from the arrival of the request's last byte; the "
            "operator may cap it. Default: the plan's.",
        ),
    ] = None
    priority: Annotated[
        int,
        Field(
            alias="X-Polyrec-Priority",
            ge=0,
            le=MAX_PRIORITY,
            description="Priority: 1 is the highest, 0 the default and lowest. Values above 0 need the right "
            "`priority`.",
        ),
    ] = 0
    quality: Annotated[
        Quality,
        Field(
            alias="X-Polyrec-Quality",
            description="`required`: only a path of the best quality may answer; needs the right `quality`.",
        ),
    ] = "any"


class RouteQuery(BaseModel):
    """A hypothetical request, for which the router's choice is explained."""

    rows: Annotated[int, Field(ge=1, lt=10**9)] = 1
    budget_ms: BudgetMs | Absent = None
    quality: Quality = "any"


class StatusQuery(BaseModel):
    """Selects samples of the history."""

    since: Annotated[
        float,
        Field(allow_inf_nan=False, description="Return samples after this time, in seconds since the start."),
    ] = -1


# Predictions


class PredictInstances(Document):
    """Rows, one object each."""

    instances: Annotated[list[FeatureRow], Field(min_length=1)]


class PredictColumns(Document):
    """Rows, one list per feature; faster than `instances` for many rows."""

    columns: FeatureColumns


class PredictResponse(Document):
    """Probabilities, one per row in the order of the request, and the path that computed them.

    quality: the path's quality on test rows, in the plan's metric; null if unknown. degraded: whether a path
    of lower quality than the best one answered, for `reason`.
    """

    predictions: list[float]
    path: str
    quality: float | None
    degraded: bool
    reason: DegradedReason | None


class RankingRequest(Document):
    """One context and its candidates, given as one list per feature or one object per candidate.

    top_k: number of candidates to return; default all, at most the plan's max_request_rows.
    """

    candidates: FeatureColumns | list[FeatureRow]
    context: FeatureRow | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None


class RankingResponse(Document):
    """Indices of the candidates by descending score, and the scores in that order."""

    order: list[int]
    scores: list[float]
    path: str
    quality: float | None
    degraded: bool
    reason: DegradedReason | None


# Health


class LiveResponse(Document):
    """The process is running."""

    live: Literal[True]
    state: StateName


class ReadyResponse(Document):
    """The server takes requests."""

    ready: Literal[True]


class NotReadyResponse(Document):
    """The server does not take requests, for the reason in `error`."""

    ready: Literal[False]
    error: str


# Plan and status


class BundleDocument(Document):
    """The bundle of a path. path: name of its folder. bytes: size on disk."""

    path: str
    name: str
    version: str
    bytes: int


class PathDocument(Document):
    """A served path.

    width: one of its bundle's nested widths. quality: on test rows, in the plan's metric (by default
    information gain, 1 - NE). accuracy: share of the same rows predicted correctly at 0.5. Both are null if
    unknown. metrics: quality figures of its bundle, by split.
    """

    name: str
    representation: str
    runtime: str
    device: str
    precision: str
    width: int | None
    quality: float | None
    accuracy: float | None
    latency: LatencyModel
    bundle: BundleDocument
    metrics: dict[str, dict[str, float | int | None]]


class ModelPath(Document):
    """A path of a model. quality: on test rows, in the model's `metric`; null if unknown."""

    name: str
    representation: str
    device: str
    quality: float | None


class InputDocument(Document):
    """An input tensor of the inference protocol; -1 in the shape is any number.

    form: the kind of request that takes it. Ranking requests have their own inputs instead of `dense` and
    `sparse`.
    """

    name: str
    datatype: Literal["FP32", "INT64"]
    shape: list[int]
    optional: bool
    form: Literal["plain", "ranking"]


class ModelDocument(Document):
    """A served model.

    aliases: other names that requests may use. version: of its bundle. version_number: the same as a number,
    for the inference protocol. metric: of the qualities, by default information gain (1 - NE). quality: of
    the best path.
    """

    name: str
    aliases: list[str]
    version: str
    version_number: str
    metric: str
    quality: float | None
    paths: list[ModelPath]
    inputs: list[InputDocument]
    schema_: Annotated[Schema, Field(alias="schema")]


class ModelsResponse(Document):
    """The served models."""

    models: list[ModelDocument]


class LaneDocument(Document):
    """One lane. pid: id of its process, null if it has none."""

    name: str
    kind: Literal["inline", "thread", "process"]
    alive: bool
    pid: int | None


class PathsResponse(Document):
    """Served paths, lanes and the router's state. `routing` is absent while the server loads."""

    paths: list[PathDocument]
    lanes: list[LaneDocument]
    routing: RouterSnapshot | Absent = None


# Administration


class MovedUpdates(Document):
    """Numbers of updated rows by path: carried over to the new generation, or left behind."""

    carried: dict[str, int]
    left_behind: dict[str, int]


class ReloadResponse(Document):
    """The paths served from now on. changes: differences that clients notice, such as other features."""

    paths: list[str]
    bundle_version: str
    changes: list[str]
    updates: MovedUpdates


class DrainResponse(Document):
    """The new state of the server."""

    state: StateName


class NoteResponse(Document):
    """The line that was added to the status page."""

    text: str


class RoutingResponse(Document):
    """The routing in force."""

    policy: str
    weights: dict[str, float]
    query_s: float
    row_s: float
    default_budget_ms: float


class UpdateResponse(Document):
    """The number of updated rows, and the path whose tiers hold them.

    added: number of values that took reserved rows; only with `add`. retracted: number of retracted values
    that were known; only with retractions. repeated: whether the update had been applied before; only with a
    key.
    """

    path: str
    rows: int
    added: int | None = None
    retracted: int | None = None
    repeated: bool | None = None
