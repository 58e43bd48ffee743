"""GET /v1/plan and /v1/paths: what this server follows, and what it has open."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from server.engine import Engine, Serving
from server.errors import NotReady
from server.http.reply import Reply, error_reply, json_reply


def plan_routes(engine: Engine) -> list[Route]:
    """The plan as it is followed (the operator's settings included), and the open paths."""

    async def plan(request: Request) -> Reply:
        try:
            return json_reply(engine.plan.model_dump(mode="json"))
        except NotReady as e:
            return error_reply(e)

    async def paths(request: Request) -> Reply:
        return json_reply({"paths": [describe(serving) for serving in engine.serving]})

    return [Route("/v1/plan", plan), Route("/v1/paths", paths)]


def describe(serving: Serving) -> dict[str, Any]:
    """One open path: what it is made of, how good its model is, and its queue now."""
    manifest = serving.bundle.manifest
    return {
        "name": serving.name,
        "representation": serving.bundle.name,
        "runtime": serving.runtime.name,
        "device": serving.runtime.device,
        "bundle": {
            "path": str(serving.path.bundle),
            "name": manifest.name,
            "version": manifest.version,
            "bytes": serving.bundle.bytes,
        },
        "quality": manifest.metrics,
        "queued_rows": serving.lane.queued_rows,
    }
