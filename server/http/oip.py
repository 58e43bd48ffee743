"""The Open Inference Protocol over HTTP: health, metadata, configuration, statistics, infer.

The tensors are read and written by `server/codecs/oip_codec.py`; this file knows the pages. Every page of a
model also exists with a version segment, which must name the version that is being served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Scope

from polyrec.models.bundle.bundle import code_version
from polyrec.server.app.engine import Engine
from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.codecs.oip_codec import OUTPUT, encode
from polyrec.server.dispatch.answer import Answer
from polyrec.server.errors import Forbidden, Malformed, NotFound, NotReady
from polyrec.server.http.call import HotEndpoint, Parsed
from polyrec.server.http.connection.body import header
from polyrec.server.http.connection.reply import Reply, error_reply, json_reply
from polyrec.server.http.health import readiness
from polyrec.server.http.options import RequestOptions

MODEL = "dlrm"
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
BINARY = b"application/octet-stream"


class InferForm:
    """An inference request, JSON or binary, -> `probability`."""

    endpoint = "infer"
    has_options = True

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        parameters = scope.get("path_params")
        if parameters:
            check_model(serving, parameters)
        given = header(scope["headers"], HEADER_BYTES)
        if given is not None and (not given.isdigit() or len(given) > 18):
            raise Malformed("header Inference-Header-Content-Length is not a number of bytes")
        request = serving.codec.decode(body, None if given is None else int(given))
        budget_s = request.timeout_us / 1e6 if request.timeout_us else None
        return Parsed(request.rows, request, RequestOptions(budget_s, request.priority, request.required))

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        body, header_bytes = encode(
            parsed.asked, answer.probabilities, MODEL, serving.version, path.name, answer.reason
        )
        if header_bytes is None:
            return Reply(body, headers=(path.header,))
        length = (HEADER_BYTES, b"%d" % header_bytes)
        return Reply(body, content_type=BINARY, headers=(length, path.header))


def check_model(serving: Serving, parameters: dict[str, str]) -> None:
    """Raises NotFound unless the page's model and version are the ones that are served."""
    model = parameters.get("model", MODEL)
    if model != MODEL:
        raise NotFound(f"unknown model '{model}'; this server has '{MODEL}'")
    version = parameters.get("version", serving.version)
    if version != serving.version:
        raise NotFound(f"model '{MODEL}' has no version '{version}'; it serves '{serving.version}'")


Page = Callable[[Request], Awaitable[Reply]]


def oip_routes(engine: Engine, infer: HotEndpoint) -> list[Route]:
    """Every page of the protocol."""

    def of_model(document: Callable[[Serving], Any]) -> Page:
        async def page(request: Request) -> Reply:
            try:
                serving = engine.serving
                check_model(serving, request.path_params)
            except (NotFound, NotReady) as e:
                return error_reply(e)
            return json_reply(document(serving))

        return page

    async def live(request: Request) -> Reply:
        return json_reply({"live": True})

    async def ready(request: Request) -> Reply:
        return readiness(engine)

    async def model_ready(request: Request) -> Reply:
        try:
            serving = engine.serving
            check_model(serving, request.path_params)
        except (NotFound, NotReady) as e:
            return error_reply(e)
        why = engine.unready()
        if why is not None:
            return error_reply(NotReady(why))
        return json_reply({"name": MODEL, "ready": True})

    async def server(request: Request) -> Reply:
        return json_reply({"name": SERVER, "version": code_version(), "extensions": EXTENSIONS})

    async def index(request: Request) -> Reply:
        reason = engine.unready() or ""
        state = "UNAVAILABLE" if reason else "READY"
        try:
            versions = [engine.serving.version]
        except NotReady:
            versions = [""]
        return json_reply([{"name": MODEL, "version": v, "state": state, "reason": reason} for v in versions])

    async def repository(request: Request) -> Reply:
        return error_reply(Forbidden("loading and unloading models over this interface is not allowed"))

    def stats(serving: Serving) -> dict[str, Any]:
        engine.metrics.flush()
        return {"model_stats": [serving.statistics.document(MODEL, serving.version)]}

    statistics = of_model(stats)
    routes = [
        Route("/v2", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/v2/models/stats", statistics),
        Route("/v2/repository/index", index, methods=["POST"]),
        Route("/v2/repository/models/{model}/load", repository, methods=["POST"]),
        Route("/v2/repository/models/{model}/unload", repository, methods=["POST"]),
    ]
    for root in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route(root, of_model(metadata)),
            Route(f"{root}/ready", model_ready),
            Route(f"{root}/config", of_model(lambda s: configuration(engine, s))),
            Route(f"{root}/stats", statistics),
            Route(f"{root}/infer", infer, methods=["POST"]),
        ]
    return routes


def metadata(serving: Serving) -> dict[str, Any]:
    """Names, types and shapes of the model's inputs and output; -1 is any number.

    The inputs of the plain form come first, then those that a ranking has instead of them.
    """
    inputs = serving.codec.inputs
    return {
        "name": MODEL,
        "versions": [serving.version],
        "platform": f"polyrec_{serving.paths[0].planned.runtime}",
        "inputs": [
            {"name": d.name, "datatype": d.datatype, "shape": list(d.shape)}
            for d in (*inputs.plain, *inputs.ranking)
        ],
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}],
    }


def configuration(engine: Engine, serving: Serving) -> dict[str, Any]:
    """The model configuration in Triton's form: what perf_analyzer reads before it starts.

    Shapes are without the batch dimension, as max_batch_size announces one. The inputs of a ranking are
    optional, and those that they stand for are not: a client that sends what is required is understood.
    """
    inputs = serving.codec.inputs
    limits = engine.plan.limits
    return {
        "name": MODEL,
        "platform": f"polyrec_{serving.paths[0].planned.runtime}",
        "backend": SERVER,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": limits.max_request_rows,
        "input": [
            {
                "name": d.name,
                "data_type": f"TYPE_{d.datatype}",
                "dims": list(d.shape[1:]) or [1],
                "optional": d.optional or d in inputs.ranking,
            }
            for d in (*inputs.plain, *inputs.ranking)
        ],
        "output": [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": [1]}],
        "parameters": {
            "ranking": {
                "string_value": f"instead of dense and sparse: {', '.join(d.name for d in inputs.ranking)}"
            }
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
