"""The HTTP front: an engine in, a FastAPI application out.

Every page is an ordinary route; `hot` names those that `server/http/connection/connection.py` answers
without ASGI. Whatever goes wrong leaves as `{"error": ...}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polyrec.models.bundle.bundle import code_version
from polyrec.server.app.engine import Engine
from polyrec.server.errors import Defect, MethodNotAllowed, NotFound, error_response
from polyrec.server.http.admin import Admin, admin_routes
from polyrec.server.http.admin_embeddings import Embeddings, embeddings_route
from polyrec.server.http.call import HotEndpoint
from polyrec.server.http.health import health_routes
from polyrec.server.http.oip import MODEL, InferForm, oip_routes
from polyrec.server.http.plan import plan_routes
from polyrec.server.http.predict import PredictForm
from polyrec.server.http.rank import RankForm
from polyrec.server.http.status_page import status_routes

log = logging.getLogger("polyrec.http")


class Application(FastAPI):
    """FastAPI, with the endpoints that may be answered without it, by raw path."""

    hot: Mapping[bytes, HotEndpoint]
    engine: Engine


def create_app(engine: Engine, admin: Admin | None = None) -> Application:
    """The application of one engine, which may still be loading; without `admin` nobody administers it."""
    admin = admin or Admin(engine)
    predict = HotEndpoint(engine, PredictForm())
    rank = HotEndpoint(engine, RankForm())
    infer = HotEndpoint(engine, InferForm())
    app = Application(title="Polyrec", version=code_version(), openapi_url=None, redirect_slashes=False)
    app.hot = {
        b"/v1/predict": predict,
        b"/v1/rank": rank,
        f"/v2/models/{MODEL}/infer".encode(): infer,
    }
    app.engine = engine
    app.router.routes.extend(
        [
            Route("/v1/predict", predict, methods=["POST"]),
            Route("/v1/rank", rank, methods=["POST"]),
            *plan_routes(engine),
            *admin_routes(admin),
            embeddings_route(admin, Embeddings(engine.stacks)),
            *health_routes(engine),
            *status_routes(engine),
            *oip_routes(engine, infer),
        ]
    )
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _defect)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
        return _response(MethodNotAllowed(request.method, ", ".join(allowed)))
    return _response(NotFound(f"no page '{request.url.path}'"))


async def _defect(request: Request, error: Exception) -> Response:
    return _response(Defect("internal error; the server's log has the details"))


def _response(error: Exception) -> Response:
    refused = error_response(error)
    headers = {name.decode(): value.decode() for name, value in refused.headers}
    return Response(refused.body, refused.status, headers, media_type="application/json")
