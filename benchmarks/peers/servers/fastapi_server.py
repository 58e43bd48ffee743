"""Serves a peer model with plain FastAPI: one handler parses, looks up, runs the session and answers.

    python -m benchmarks.peers.servers.fastapi_server FOLDER PORT [PRECISION]

The handler runs on the event loop, since a thread pool would only add hops on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.peers.servers.peer_session import BadRequest, PeerSession, decode, encode


def create_app(session: PeerSession) -> FastAPI:
    """Returns the application, with /livez and the inference protocol's infer."""
    app = FastAPI()

    @app.get("/livez")
    async def livez() -> Response:
        return Response()

    @app.post("/v2/models/dlrm/infer")
    async def infer(request: Request) -> Response:
        try:
            dense, sparse = decode(await request.body())
            answer = encode(session(dense, sparse))
        except BadRequest as e:
            return Response(str(e), 400)
        return Response(answer, media_type="application/json")

    return app


if __name__ == "__main__":
    folder, port, *precision = sys.argv[1:]
    app = create_app(PeerSession(Path(folder), *precision))
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(port),
        access_log=False,
        log_level="warning",
        loop="uvloop",
        http="httptools",
    )
