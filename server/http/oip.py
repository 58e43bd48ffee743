"""Endpoints of the Open Inference Protocol over HTTP: health, metadata, configuration, statistics, infer.

`server/codecs/oip_codec.py` decodes and encodes tensors. Every model endpoint also exists with a version
segment, which must be the served version, either as a number or as the bundle's version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Scope

from polyrec.models.version import code_version
from polyrec.server.app.engine import Engine
from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.codecs.oip_codec import OUTPUT, encode
from polyrec.server.codecs.row_count import rows_of_tensors
from polyrec.server.dispatch.answer import Answer
from polyrec.server.errors import Malformed, NotFound, NotReady
from polyrec.server.http.call import Parsed
from polyrec.server.http.connection.body import header
from polyrec.server.http.connection.hot_endpoint import HotEndpoint
from polyrec.server.http.connection.reply import Reply, error_reply, json_reply
from polyrec.server.http.documents import NotReadyResponse, ReadyResponse
from polyrec.server.http.health import readiness
from polyrec.server.http.oip_documents import (
    InferenceRequest,
    InferenceResponse,
    InferHeaders,
    ModelConfiguration,
    ModelMetadata,
    ModelReady,
    ServerLive,
    ServerMetadata,
    StatisticsResponse,
)
from polyrec.server.http.openapi import CLIENT_ERRORS, PATH_HEADER, Endpoint, Handler, RequestBody, Success
from polyrec.server.http.options import RequestOptions
from polyrec.server.repository.repository import ModelRepository

SERVER = "polyrec"
EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)
HEADER_BYTES = b"inference-header-content-length"
BINARY = "application/octet-stream"


class InferCodec:
    """Codec of inference requests in JSON or binary form, with the output `probability`."""

    endpoint = "infer"
    has_options = True

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        parameters = scope.get("path_params")
        if parameters:
            serving.model.check(parameters["model"], parameters.get("version"))
        header_bytes = header(scope["headers"], HEADER_BYTES)
        if header_bytes is not None and (not header_bytes.isdigit() or len(header_bytes) > 18):
            raise Malformed("header Inference-Header-Content-Length is not a number of bytes")
        request = serving.oip_codec.decode(body, None if header_bytes is None else int(header_bytes))
        budget_s = request.timeout_us / 1e6 if request.timeout_us else None
        options = RequestOptions(budget_s, request.priority, request.best_only)
        pinned = parameters is not None and "version" in parameters
        return Parsed(request.rows, request, options, pinned, request.id)

    def count_rows(self, serving: Serving, body: bytes) -> int | None:
        return rows_of_tensors(body)

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        body, header_bytes = encode(
            parsed.reply_form,
            answer.probabilities,
            serving.model.name,
            serving.model.number,
            path.name,
            path.quality,
            answer.reason,
        )
        if header_bytes is None:
            return Reply(body, headers=(path.header,))
        length = (HEADER_BYTES, b"%d" % header_bytes)
        return Reply(body, content_type=BINARY.encode(), headers=(length, path.header))


def infer_target(model: str) -> bytes:
    """Returns the HTTP target of inference requests to a model."""
    return f"/v2/models/{model}/infer".encode()


def oip_routes(models: ModelRepository, infer: HotEndpoint) -> list[Endpoint]:
    """Returns all endpoints except the repository's. infer: serves one model; the others serve any."""
    return [*_server_routes(models), *_model_routes(models, infer)]


def _server_routes(models: ModelRepository) -> list[Endpoint]:
    async def server(request: Request) -> Reply:
        return json_reply({"name": SERVER, "version": code_version(), "extensions": EXTENSIONS})

    async def live(request: Request) -> Reply:
        return json_reply({"live": True})

    async def ready(request: Request) -> Reply:
        return readiness(models)

    return [
        _endpoint("/v2", server, "The server's name, version and extensions", ServerMetadata),
        _endpoint("/v2/health/live", live, "Liveness", ServerLive),
        _endpoint(
            "/v2/health/ready", ready, "Readiness", ReadyResponse, error_models={503: NotReadyResponse}
        ),
    ]


def _model_routes(models: ModelRepository, infer: HotEndpoint) -> list[Endpoint]:
    def named(request: Request) -> Engine:
        return models.find(request.path_params["model"], request.path_params.get("version"))

    def document(make: Callable[[Engine], Any]) -> Handler:
        async def answer(request: Request) -> Reply:
            try:
                return json_reply(make(named(request)))
            except (NotFound, NotReady) as e:
                return error_reply(e)

        return answer

    async def ready(request: Request) -> Reply:
        try:
            engine = named(request)
        except (NotFound, NotReady) as e:
            return error_reply(e)
        reason = engine.why_unready()
        if reason is not None:
            return error_reply(NotReady(reason))
        return json_reply({"name": engine.name, "ready": True})

    async def all_statistics(request: Request) -> Reply:
        try:
            return json_reply(statistics(models.engines))
        except NotReady as e:
            return error_reply(e)

    def documented(path: str, answer: Handler, summary: str, model: type[BaseModel], *more: int) -> Endpoint:
        return _endpoint(path, answer, summary, model, errors=(404, *more, 503))

    # declared before the model endpoints, as `stats` cannot be a model's name
    routes = [
        _endpoint(
            "/v2/models/stats",
            all_statistics,
            "Statistics of all models",
            StatisticsResponse,
            errors=(421, 503),
        )
    ]
    described = document(lambda engine: metadata(engine.serving))
    configured = document(configuration)
    counted = document(lambda engine: statistics((engine,)))
    for root in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            documented(root, described, "Inputs and output", ModelMetadata),
            documented(f"{root}/ready", ready, "Readiness of the model", ModelReady),
            documented(f"{root}/config", configured, "Triton's model configuration", ModelConfiguration),
            documented(f"{root}/stats", counted, "Statistics", StatisticsResponse, 421),
            _infer_endpoint(f"{root}/infer", infer),
        ]
    return routes


def _infer_endpoint(path: str, infer: HotEndpoint) -> Endpoint:
    return Endpoint(
        path,
        infer,
        tag="inference protocol",
        summary="Predict from tensors",
        response=Success(
            InferenceResponse,
            content={BINARY: {}},
            headers={
                **PATH_HEADER,
                "Inference-Header-Content-Length": {
                    "description": "Bytes of the JSON; only if binary data follow.",
                    "schema": {"type": "integer"},
                },
            },
        ),
        method="POST",
        description="Tensors as JSON, as binary data after the JSON, or mixed; see the headers.",
        request=RequestBody(InferenceRequest, content={BINARY: {}}),
        headers=InferHeaders,
        errors=(404, *CLIENT_ERRORS),
        token="maybe",
    )


def _endpoint(path: str, answer: Handler, summary: str, model: type[BaseModel], **declared: Any) -> Endpoint:
    response = Success(model)
    return Endpoint(path, answer, tag="inference protocol", summary=summary, response=response, **declared)


def metadata(serving: Serving) -> dict[str, Any]:
    """Returns names, types and shapes of the model's required inputs and its output; -1 means any size.

    Optional inputs (lists, rankings) are only in GET /v1/models, since tools such as perf_analyzer fill every
    input listed here with one row per row of a batch.
    """
    return {
        "name": serving.model.name,
        "versions": [serving.model.number],
        "platform": f"polyrec_{serving.paths[0].planned.runtime}",
        "inputs": [
            {"name": d.name, "datatype": d.datatype, "shape": list(d.shape)}
            for d in serving.oip_codec.inputs.required
        ],
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}],
    }


def statistics(engines: Sequence[Engine]) -> dict[str, Any]:
    """Returns the statistics of several models. Raises NotReady."""
    documents = []
    for engine in engines:
        engine.metrics.flush()
        model = engine.serving.model
        documents.append(engine.serving.statistics.document(model.name, model.number))
    return {"model_stats": documents}


def configuration(engine: Engine) -> dict[str, Any]:
    """Returns Triton's model configuration, which perf_analyzer reads before it starts.

    It has the inputs of `metadata`, with shapes that omit the batch dimension, which max_batch_size implies.
    """
    serving = engine.serving
    inputs = serving.oip_codec.inputs
    optional = [d for d in inputs.plain if d not in inputs.required]
    limits = serving.plan.limits
    return {
        "name": serving.model.name,
        "platform": f"polyrec_{serving.paths[0].planned.runtime}",
        "backend": SERVER,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": limits.max_request_rows,
        "input": [
            {
                "name": d.name,
                "data_type": f"TYPE_{d.datatype}",
                "dims": list(d.shape[1:]) or [1],
                "optional": d.optional,
            }
            for d in inputs.required
        ],
        "output": [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": [1]}],
        "parameters": {
            "optional_inputs": {"string_value": ", ".join(d.name for d in optional)},
            "ranking_inputs": {"string_value": ", ".join(d.name for d in inputs.ranking)},
        },
        "dynamic_batching": {
            "preferred_batch_size": [limits.max_batch_rows],
            "max_queue_delay_microseconds": 0,
        },
        "instance_group": [
            {
                "name": lane.name,
                "kind": "KIND_CPU" if lane.device == "cpu" else "KIND_GPU",
                "count": 1,
            }
            for lane in serving.plan.all_lanes()
        ],
    }
