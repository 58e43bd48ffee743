"""Builds the FastAPI application of one engine, with all endpoints and the OpenAPI document.

server/app/run.py creates one per model. The endpoints in `Application.hot` are declared here too, but
server/http/connection/connection.py answers them without ASGI. Every error is `{"error": ...}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from polyrec.models.version import code_version
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.app.served_model import ALIAS
from polyrec.server.app.serving import Serving
from polyrec.server.errors import Defect, MethodNotAllowed, NotFound, error_response
from polyrec.server.http.admin import Admin, admin_routes
from polyrec.server.http.admin_embeddings import Embeddings, embeddings_route
from polyrec.server.http.connection.hot_endpoint import HotEndpoint
from polyrec.server.http.docs import ApiDocument, docs_routes
from polyrec.server.http.health import health_routes
from polyrec.server.http.oip import InferCodec, infer_target, oip_routes
from polyrec.server.http.plan import plan_routes
from polyrec.server.http.predictions import PredictCodec, RankCodec, predict_endpoint, rank_endpoint
from polyrec.server.http.status_page import status_routes
from polyrec.server.prediction_log.feedback import feedback_endpoint
from polyrec.server.repository.loader import ModelLoader
from polyrec.server.repository.repository import ModelRepository
from polyrec.server.repository.routes import repository_routes
from polyrec.server.rollout.control import RolloutControl
from polyrec.server.rollout.routes import rollout_routes


class Application(FastAPI):
    """A FastAPI application that also lists the endpoints to be answered without it, by raw path."""

    hot: Mapping[bytes, HotEndpoint]
    engine: Engine
    document: ApiDocument

    def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document of the model that is served now."""
        return self.document.make()


def create_app(
    engine: Engine,
    admin: Admin | None = None,
    docs: bool = True,
    models: ModelRepository | None = None,
    loader: ModelLoader | None = None,
) -> Application:
    """Returns the application of an engine, which may still be loading.

    admin: the admin calls; None creates them without a plan loader.
    docs: whether to serve /docs and /openapi.json.
    models: all models of the server, for pages that show all; None for the engine's model only.
    loader: loads and unloads models; None for a server with a single model.
    """
    admin = admin or Admin(engine)
    models = models or ModelRepository((engine,))
    predict = HotEndpoint(engine, PredictCodec())
    rank = HotEndpoint(engine, RankCodec())
    infer = HotEndpoint(engine, InferCodec())
    app = Application(title="Polyrec", version=code_version(), openapi_url=None, redirect_slashes=False)
    always = {b"/v1/predict": predict, b"/v1/rank": rank, infer_target(ALIAS): infer}
    app.hot = hot = dict(always)

    def name_model(serving: Serving) -> None:
        target = infer_target(serving.model.name)
        hot[target] = infer
        for other in hot.keys() - always.keys() - {target}:
            del hot[other]

    engine.on_adopt.append(name_model)
    if engine.state is not LifecycleState.LOADING:
        name_model(engine.serving)
    app.engine = engine
    app.document = ApiDocument(app, engine)
    app.router.routes.extend(
        [
            predict_endpoint(predict),
            rank_endpoint(rank),
            feedback_endpoint(engine),
            *plan_routes(engine, models),
            *admin_routes(admin),
            embeddings_route(admin, Embeddings(engine.stacks)),
            *rollout_routes(admin, RolloutControl(engine, admin)),
            *health_routes(models),
            *status_routes(engine, docs),
            *oip_routes(models, infer),
            *repository_routes(models, admin, loader),
            *(docs_routes(app.document) if docs else ()),
        ]
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _defect)
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """Answers requests with an unknown path or a method that the path does not support."""
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
