"""The FastAPI application of one engine.

Every endpoint is declared in it, and in its OpenAPI document (GET /openapi.json). `hot` are the endpoints
that `server/http/connection/connection.py` answers without ASGI. Every error is `{"error": ...}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from polyrec.models.bundle.bundle import code_version
from polyrec.server.app.background import run_in_thread
from polyrec.server.app.engine import Engine
from polyrec.server.errors import Defect, MethodNotAllowed, NotFound, error_response
from polyrec.server.http.admin import Admin, admin_routes
from polyrec.server.http.admin_embeddings import Embeddings, embeddings_route
from polyrec.server.http.call import HotEndpoint
from polyrec.server.http.connection.reply import Reply, json_reply
from polyrec.server.http.health import health_routes
from polyrec.server.http.oip import MODEL, InferCodec, oip_routes
from polyrec.server.http.openapi import Endpoint, openapi_document
from polyrec.server.http.plan import plan_routes
from polyrec.server.http.predictions import PredictCodec, RankCodec, predict_endpoint, rank_endpoint
from polyrec.server.http.status_page import status_routes


class Application(FastAPI):
    """FastAPI, with the endpoints that may be answered without it, by raw path."""

    hot: Mapping[bytes, HotEndpoint]
    engine: Engine

    def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document, made at the first call."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi_document(self)
        return self.openapi_schema


def create_app(engine: Engine, admin: Admin | None = None) -> Application:
    """Makes the application of an engine, which may still be loading. admin: None: no plan loader."""
    admin = admin or Admin(engine)
    predict = HotEndpoint(engine, PredictCodec())
    rank = HotEndpoint(engine, RankCodec())
    infer = HotEndpoint(engine, InferCodec())
    app = Application(title="Polyrec", version=code_version(), openapi_url=None, redirect_slashes=False)
    app.hot = {
        b"/v1/predict": predict,
        b"/v1/rank": rank,
        f"/v2/models/{MODEL}/infer".encode(): infer,
    }
    app.engine = engine
    app.router.routes.extend(
        [
            predict_endpoint(predict),
            rank_endpoint(rank),
            *plan_routes(engine),
            *admin_routes(admin),
            embeddings_route(admin, Embeddings(engine.stacks)),
            *health_routes(engine),
            *status_routes(engine),
            *oip_routes(engine, infer),
            _openapi_endpoint(app),
        ]
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _defect)
    return app


def _openapi_endpoint(app: Application) -> Endpoint:
    document: asyncio.Future[Reply] | None = None

    async def openapi(request: Request) -> Reply:
        nonlocal document
        if document is None:
            # Making it takes tenths of a second, which would delay other requests.
            document = run_in_thread(lambda: json_reply(app.openapi()))
        return await asyncio.shield(document)

    return Endpoint(
        "/openapi.json",
        openapi,
        tag="status",
        summary="This document",
        response=dict[str, Any],
    )


async def _http_error(request: Request, error: Exception) -> Response:
    """Answers requests for unknown paths and with methods that a path does not have."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
        return _response(MethodNotAllowed(request.method, ", ".join(allowed)))
    return _response(NotFound(f"no page '{request.url.path}'"))


async def _defect(request: Request, error: Exception) -> Response:
    return _response(Defect("internal error; the server's log has the details"))


def _response(error: Exception) -> Response:
    response = error_response(error)
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return Response(response.body, response.status, headers, media_type="application/json")
