"""Typed models of the Open Inference Protocol, for the OpenAPI document; see `server/http/documents.py`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from polyrec.planner.routing.query import MAX_PRIORITY
from polyrec.server.codecs.oip_codec import MAX_TIMEOUT_US
from polyrec.server.codecs.oip_header import MAX_DIMENSIONS
from polyrec.server.http.documents import Absent, DegradedReason, Document, OptionHeaders, Quality

HeaderBytes = Annotated[int, Field(ge=0, lt=10**18)]
Shape = Annotated[list[Annotated[int, Field(ge=-1)]], Field(max_length=MAX_DIMENSIONS)]
Data = list[int] | list[float] | list[list[int]] | list[list[float]]
"""Values in row-major order, flat or nested."""


class ProtocolDocument(BaseModel):
    """Base of the requests. Unknown keys and parameters are ignored, as the protocol requires."""

    model_config = ConfigDict(extra="allow", frozen=True)


class InferHeaders(OptionHeaders):
    """Per-request options, and the length of the JSON that precedes binary tensors."""

    header_bytes: Annotated[
        HeaderBytes | Absent,
        Field(
            alias="Inference-Header-Content-Length",
            description="Length in bytes of the JSON before the binary tensors; 0: a raw body, all rows of "
            "`dense`, then all rows of `sparse`. Default: the body is JSON.",
        ),
    ] = None


class InputParameters(ProtocolDocument):
    """Parameters of an input. binary_data_size: bytes of its tensor, which follows the JSON."""

    binary_data_size: Annotated[int, Field(ge=0)] | None = None


class InferenceInput(ProtocolDocument):
    """One input tensor, with `data` or with `binary_data_size`."""

    name: str
    shape: Shape
    datatype: Literal["FP32", "INT64", "INT32"]
    parameters: InputParameters | None = None
    data: Data | None = None


class OutputParameters(ProtocolDocument):
    """Parameters of an output. binary_data: whether to send the tensor after the JSON of the response."""

    binary_data: bool | None = None


class RequestedOutput(ProtocolDocument):
    """The only output, `probability`."""

    name: Literal["probability"]
    parameters: OutputParameters | None = None


class InferenceParameters(ProtocolDocument):
    """Parameters of a request.

    timeout: latency budget in microseconds, 0 for the default. priority: 1 is the highest, 0 the default and
    lowest.
    """

    timeout: Annotated[int, Field(ge=0, le=MAX_TIMEOUT_US)] | None = None
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)] = 0
    quality: Quality = "any"
    binary_data_output: bool = False


class InferenceRequest(ProtocolDocument):
    """Input tensors of stable ids, as listed in the model's metadata."""

    inputs: list[InferenceInput]
    id: str | None = None
    outputs: Annotated[list[RequestedOutput], Field(max_length=1)] | None = None
    parameters: InferenceParameters | None = None


class ResponseParameters(Document):
    """The path that answered.

    quality: the path's quality, if known. degraded: whether it has lower quality than the best path, with the
    reason in `reason`.
    """

    path: str
    quality: float | Absent = None
    degraded: bool
    reason: DegradedReason | Absent = None


class BinaryData(Document):
    """Parameters of an output sent as binary data. binary_data_size: bytes of its tensor, after the JSON."""

    binary_data_size: int


class InferenceOutput(Document):
    """Probabilities, one per row, with `data` or with `binary_data_size`."""

    name: Literal["probability"]
    datatype: Literal["FP32"]
    shape: Annotated[list[int], Field(min_length=1, max_length=1)]
    data: list[float] | Absent = None
    parameters: BinaryData | Absent = None


class InferenceResponse(Document):
    """The model's answer. id: the id given in the request."""

    model_name: str
    model_version: str
    id: str | Absent = None
    parameters: ResponseParameters
    outputs: Annotated[list[InferenceOutput], Field(min_length=1, max_length=1)]


class ServerLive(Document):
    """The process is running."""

    live: Literal[True]


class ModelReady(Document):
    """The model is ready for requests."""

    name: str
    ready: Literal[True]


class ServerMetadata(Document):
    """Name, version and the extensions of the protocol that are supported."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Document):
    """A tensor; -1 in the shape is any number."""

    name: str
    datatype: Literal["FP32", "INT64"]
    shape: Shape


class ModelMetadata(Document):
    """The required inputs and the output. GET /v1/models also lists the optional inputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class VersionPolicyLatest(Document):
    num_versions: Literal[1]


class VersionPolicy(Document):
    latest: VersionPolicyLatest


class ConfigInput(Document):
    """Shape without the batch dimension."""

    name: str
    data_type: Literal["TYPE_FP32", "TYPE_INT64"]
    dims: list[int]
    optional: bool


class ConfigOutput(Document):
    """Shape without the batch dimension."""

    name: Literal["probability"]
    data_type: Literal["TYPE_FP32"]
    dims: list[int]


class ConfigParameter(Document):
    string_value: str


class DynamicBatching(Document):
    preferred_batch_size: list[int]
    max_queue_delay_microseconds: Literal[0]


class InstanceGroup(Document):
    """One lane."""

    name: str
    kind: Literal["KIND_CPU", "KIND_GPU"]
    count: Literal[1]


class ModelConfiguration(Document):
    """Triton's model configuration."""

    name: str
    platform: str
    backend: str
    version_policy: VersionPolicy
    max_batch_size: int
    input: list[ConfigInput]
    output: list[ConfigOutput]
    parameters: dict[str, ConfigParameter]
    dynamic_batching: DynamicBatching
    instance_group: list[InstanceGroup]


class CumulativeDuration(Document):
    """Number of executions of a phase since the server's start, and their total duration."""

    count: int
    ns: int


class InferenceStatistics(Document):
    """Durations of requests and of their phases."""

    success: CumulativeDuration
    fail: CumulativeDuration
    queue: CumulativeDuration
    compute_input: CumulativeDuration
    compute_infer: CumulativeDuration
    compute_output: CumulativeDuration
    cache_hit: CumulativeDuration
    cache_miss: CumulativeDuration


class BatchStatistics(Document):
    """Durations of batches of one size."""

    batch_size: int
    compute_input: CumulativeDuration
    compute_infer: CumulativeDuration
    compute_output: CumulativeDuration


class ModelStatistics(Document):
    """Statistics of one model.

    last_inference: milliseconds since the epoch. inference_count: rows. execution_count: batches.
    """

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]
    memory_usage: Annotated[list[str], Field(max_length=0)]


class StatisticsResponse(Document):
    """Cumulative statistics since the server's start."""

    model_stats: list[ModelStatistics]


class ModelState(Document):
    """An entry of the repository's index. reason: why the model is unavailable; empty if it is ready."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str
