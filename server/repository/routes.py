"""The repository extension of the inference protocol: the index of models, and loading and unloading them.

Loading and unloading need a token with the right `admin`, as POST /v1/admin/... does, and leave an audit
line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import StrictBool
from starlette.requests import Request

from polyrec.models.files import Strict
from polyrec.server.app.engine import Engine
from polyrec.server.errors import Conflict, NotReady, shortened
from polyrec.server.http.admin import MAX_BODY_BYTES, Admin, parse_arguments
from polyrec.server.http.connection.reply import Reply, json_reply
from polyrec.server.http.oip_documents import ModelState
from polyrec.server.http.openapi import ADMIN_ERRORS, Endpoint, RequestBody, Success
from polyrec.server.repository.loader import UNLOADED, ModelLoader
from polyrec.server.repository.repository import ModelRepository


class NoParameters(Strict):
    """Parameters of a load: none, since files and configuration are the operator's."""


class LoadRequest(Strict):
    """The body of a load, which may be left out."""

    parameters: NoParameters | None = None


class UnloadParameters(Strict):
    """Parameters of an unload. unload_dependents: sent by Triton's clients; no model has dependents."""

    unload_dependents: StrictBool = False


class UnloadRequest(Strict):
    """The body of an unload, which may be left out."""

    parameters: UnloadParameters | None = None


def repository_routes(models: ModelRepository, admin: Admin, loader: ModelLoader | None) -> list[Endpoint]:
    """Returns the endpoints of the extension. admin: checks tokens and writes audit lines. loader: None for a
    server of a single model.
    """

    async def index(request: Request) -> Reply:
        return json_reply(model_states(models, () if loader is None else await loader.unloaded()))

    def changing(
        action: str, arguments: type[Strict], change: Callable[[str], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Reply]]:
        async def answer(request: Request) -> Reply:
            async def perform(body: bytes) -> dict[str, Any]:
                parse_arguments(arguments, body.strip() or b"{}")
                return await change(request.path_params["model"])

            name = {"model": shortened(request.path_params["model"])}
            return await admin.perform(request, f"repository {action}", MAX_BODY_BYTES, perform, name)

        return answer

    def loader_for(name: str) -> ModelLoader:
        if loader is None:
            models.find(name)  # an unknown name is 404 on any server
            raise Conflict("this server has a single model; start it with --models DIR or --plan NAME=FILE")
        return loader

    async def load(name: str) -> dict[str, Any]:
        return _model_state(await loader_for(name).load(name))

    async def unload(name: str) -> dict[str, Any]:
        await loader_for(name).unload(name)
        return {"name": name, "version": "", "state": "UNAVAILABLE", "reason": UNLOADED}

    return [
        Endpoint(
            "/v2/repository/index",
            index,
            tag="inference protocol",
            summary="The models and their states",
            response=Success(list[ModelState]),
            method="POST",
            errors=(421,),
        ),
        *(
            Endpoint(
                f"/v2/repository/models/{{model}}/{action}",
                changing(action, request, change),
                tag="inference protocol",
                summary=f"{action.capitalize()} a model",
                description="Only on a server of several models (409).",
                method="POST",
                request=RequestBody(request, required=False),
                response=Success(ModelState),
                errors=(404, *ADMIN_ERRORS),
                token="always",
            )
            for action, request, change in (("load", LoadRequest, load), ("unload", UnloadRequest, unload))
        ),
    ]


def model_states(models: ModelRepository, unloaded: Sequence[tuple[str, str]] = ()) -> list[dict[str, Any]]:
    """Returns the repository index: the models and their states. unloaded: (name, reason) of others."""
    return [
        *(_model_state(engine) for engine in models.engines),
        *({"name": n, "version": "", "state": "UNAVAILABLE", "reason": reason} for n, reason in unloaded),
    ]


def _model_state(engine: Engine) -> dict[str, Any]:
    reason = engine.why_unready() or ""
    state = "UNAVAILABLE" if reason else "READY"
    try:
        version = engine.serving.model.number
    except NotReady:
        version = ""
    return {"name": engine.name, "version": version, "state": state, "reason": reason}
