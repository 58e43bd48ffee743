"""Endpoints for liveness, readiness and metrics, used by load balancers and Prometheus."""

from __future__ import annotations

from starlette.requests import Request

from polyrec.server.http.connection.reply import Reply, json_reply
from polyrec.server.http.documents import LiveResponse, NotReadyResponse, ReadyResponse
from polyrec.server.http.openapi import Endpoint, Success, text_response
from polyrec.server.metrics.exposition import render_all
from polyrec.server.metrics.metrics import CONTENT_TYPE
from polyrec.server.repository.repository import ModelRepository


def readiness(models: ModelRepository) -> Reply:
    """Returns a 200 reply if all models are ready, otherwise 503 with the reason."""
    reason = models.why_unready()
    if reason is None:
        return json_reply({"ready": True})
    return json_reply({"ready": False, "error": reason}, 503)


def health_routes(models: ModelRepository) -> list[Endpoint]:
    """Returns the endpoints /livez, /readyz and /metrics."""

    async def livez(request: Request) -> Reply:
        return json_reply({"live": True, "state": models.state.value})

    async def readyz(request: Request) -> Reply:
        return readiness(models)

    async def metrics(request: Request) -> Reply:
        text = render_all([engine.metrics for engine in models.engines])
        return Reply(text, content_type=CONTENT_TYPE.encode())

    return [
        Endpoint(
            "/livez",
            livez,
            tag="health",
            summary="Liveness",
            description="200 from the start of the process to its end.",
            response=Success(LiveResponse),
        ),
        Endpoint(
            "/readyz",
            readyz,
            tag="health",
            summary="Readiness",
            description="200 while the server can take requests: loaded, not draining, a lane that answers.",
            response=Success(ReadyResponse),
            error_models={503: NotReadyResponse},
        ),
        Endpoint(
            "/metrics",
            metrics,
            tag="health",
            summary="Metrics in Prometheus's text format",
            response=text_response(CONTENT_TYPE),
            errors=(421,),
        ),
    ]
