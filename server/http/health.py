"""Is the process alive, may it be sent work, what has it counted."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import Route

from polyrec.server.app.engine import Engine
from polyrec.server.http.connection.reply import Reply, json_reply
from polyrec.server.metrics.metrics import CONTENT_TYPE


def readiness(engine: Engine) -> Reply:
    """200, or 503 with the reason."""
    why = engine.unready()
    return json_reply({"ready": True}) if why is None else json_reply({"ready": False, "error": why}, 503)


def health_routes(engine: Engine) -> list[Route]:
    """/livez is 200 from the first moment to the last; /readyz from loading to draining, if a lane lives."""

    async def livez(request: Request) -> Reply:
        return json_reply({"live": True, "state": engine.state.value})

    async def readyz(request: Request) -> Reply:
        return readiness(engine)

    async def metrics(request: Request) -> Reply:
        return Reply(engine.metrics.render(), content_type=CONTENT_TYPE.encode())

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
