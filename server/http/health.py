"""Is the process alive, may it be sent work, what has it counted."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import Route

from server.engine import Engine, State
from server.http.reply import Reply, json_reply
from server.metrics import CONTENT_TYPE


def health_routes(engine: Engine) -> list[Route]:
    """/livez is 200 from the first moment to the last; /readyz only between loading and draining."""

    async def livez(request: Request) -> Reply:
        return json_reply({"live": True, "state": engine.state.value})

    async def readyz(request: Request) -> Reply:
        if engine.state is State.READY:
            return json_reply({"ready": True})
        return json_reply({"ready": False, "error": f"the server is {engine.state.value}"}, 503)

    async def metrics(request: Request) -> Reply:
        return Reply(engine.metrics.render(), content_type=CONTENT_TYPE.encode())

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
