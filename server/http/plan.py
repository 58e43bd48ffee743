"""Endpoints that describe what is served: GET /v1/models, /v1/plan, /v1/paths and /v1/route.

They return the served models, the plan in force, the open paths, and an explained routing decision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request

from polyrec.models.tiers.remote.login import place
from polyrec.planner.plan import Plan
from polyrec.planner.routing.explain import Explanation
from polyrec.server.app.engine import Engine
from polyrec.server.app.served_model import ALIAS
from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.clock import clock
from polyrec.server.errors import Malformed, NotReady, RequestError
from polyrec.server.http.connection.reply import Reply, error_reply, json_reply
from polyrec.server.http.documents import ModelsResponse, PathsResponse, RouteQuery
from polyrec.server.http.openapi import Endpoint, Success
from polyrec.server.http.options import parse_budget_s, parse_quality
from polyrec.server.repository.repository import ModelRepository

MAX_DIGITS = 9


def plan_routes(engine: Engine, repository: ModelRepository) -> list[Endpoint]:
    """Returns the endpoints. /v1/models covers all models of the server, the others the engine's model."""
    return [_models(repository), _plan(engine), _paths(engine), _route(engine)]


def _models(repository: ModelRepository) -> Endpoint:
    async def answer(request: Request) -> Reply:
        try:
            documents = [model_document(each.serving) for each in repository.engines]
        except NotReady:
            return json_reply({"models": []})
        for other in documents[1:]:
            other["aliases"] = []
        return json_reply({"models": documents})

    return Endpoint(
        "/v1/models",
        answer,
        tag="plan",
        summary="The served models",
        description="The default model comes first. The list is empty until the server has loaded.",
        response=Success(ModelsResponse),
    )


def _plan(engine: Engine) -> Endpoint:
    async def answer(request: Request) -> Reply:
        try:
            return json_reply(redact(engine.plan).model_dump(mode="json", exclude_none=True))
        except NotReady as e:
            return error_reply(e)

    return Endpoint(
        "/v1/plan",
        answer,
        tag="plan",
        summary="The plan in force",
        description="With the operator's settings, without credentials and folders of the machine.",
        response=Success(Plan),
        errors=(503,),
    )


def _paths(engine: Engine) -> Endpoint:
    async def answer(request: Request) -> Reply:
        try:
            serving = engine.serving
        except NotReady:
            return json_reply({"paths": [], "lanes": []})
        return json_reply(describe(serving))

    return Endpoint(
        "/v1/paths",
        answer,
        tag="plan",
        summary="Open paths and lanes, and the router's state",
        response=Success(PathsResponse),
    )


def _route(engine: Engine) -> Endpoint:
    async def answer(request: Request) -> Reply:
        try:
            rows, budget_s, best_only = _parse_query(request, engine.default_budget_s)
            budget_s = min(budget_s, engine.max_budget_s)
            router = engine.serving.dispatcher.router
            return json_reply(router.explain(rows, budget_s, clock(), best_only).as_dict())
        except RequestError as e:
            return error_reply(e)

    return Endpoint(
        "/v1/route",
        answer,
        tag="plan",
        summary="Explain which path would answer a request now",
        query=RouteQuery,
        response=Success(Explanation),
        errors=(503,),
    )


def redact(plan: Plan) -> Plan:
    """Returns the plan without store credentials and without folders of this machine."""
    paths = tuple(path.model_copy(update={"bundle": Path(folder_name(path.bundle))}) for path in plan.paths)
    placement = plan.placement
    if placement is not None:
        store = placement.remote
        if store is not None:
            hidden = {"url": place(store.url), "password": None, "password_file": None, "ca_file": None}
            store = store.model_copy(update=hidden)
        placement = placement.model_copy(update={"directory": None, "remote": store})
    return plan.model_copy(update={"paths": paths, "placement": placement})


def folder_name(folder: Path) -> str:
    """Returns the last component of a folder's path; resolves `.` and `..` first."""
    return folder.absolute().name if folder.name not in ("", "..") else folder.resolve().name


def model_document(serving: Serving) -> dict[str, Any]:
    """Returns the served model's names, versions, schema, inputs, and paths with their quality."""
    model, inputs = serving.model, serving.oip_codec.inputs
    qualities = [path.quality for path in serving.paths if path.quality is not None]
    return {
        "name": model.name,
        "aliases": [ALIAS] if model.name != ALIAS else [],
        "version": model.version,
        "version_number": model.number,
        "metric": serving.plan.metric,
        "quality": max(qualities, default=None),
        "paths": [
            {
                "name": path.name,
                "representation": path.bundle.name,
                "device": path.planned.device,
                "quality": path.quality,
            }
            for path in serving.paths
        ],
        "inputs": [
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": spec.shape,
                "optional": spec.optional,
                "form": form,
            }
            for form, specs in (("plain", inputs.plain), ("ranking", inputs.ranking))
            for spec in specs
        ],
        "schema": serving.bundle.manifest.schema_.model_dump(mode="json"),
    }


def describe(serving: Serving) -> dict[str, Any]:
    """Returns the open paths, the lanes and the router's current state."""
    snapshot = serving.dispatcher.router.snapshot()
    return {
        "paths": [_path(path) for path in serving.paths],
        "lanes": [
            {"name": lane.name, "kind": lane.kind, "alive": lane.alive, "pid": lane.pid}
            for lane in serving.lanes
        ],
        "routing": snapshot.as_dict(),
    }


def _path(path: OpenPath) -> dict[str, Any]:
    """Returns one open path with its bundle and the quality of its model."""
    manifest, planned = path.bundle.manifest, path.planned
    return {
        "name": path.name,
        "representation": path.bundle.name,
        "runtime": planned.runtime,
        "device": planned.device,
        "precision": planned.precision,
        "width": planned.width,
        "quality": path.quality,
        "accuracy": path.accuracy,
        "latency": path.latency.model_dump(),
        "bundle": {
            "path": folder_name(planned.bundle),
            "name": manifest.name,
            "version": manifest.version,
            "bytes": path.bundle.bytes,
        },
        "metrics": manifest.metrics,
    }


def _parse_query(request: Request, default_budget_s: float) -> tuple[int, float, bool]:
    """Parses ?rows=&budget_ms=&quality= into rows, budget in seconds, and whether quality is required.

    Raises Malformed, which names the parameter.
    """
    known = ("rows", "budget_ms", "quality")
    for name in request.query_params:
        if name not in known:
            raise Malformed(f"unknown parameter '{name}'; known: {', '.join(known)}")
    rows = request.query_params.get("rows", "1")
    if not (rows.isascii() and rows.isdigit()) or len(rows) > MAX_DIGITS or not int(rows):
        raise Malformed(f"parameter 'rows' is '{rows[:40]}'; it is a whole number above 0")
    budget_ms = request.query_params.get("budget_ms")
    budget_s = default_budget_s
    if budget_ms is not None:
        budget_s = parse_budget_s(budget_ms.encode(), "parameter 'budget_ms'")
    quality = request.query_params.get("quality", "any")
    return int(rows), budget_s, parse_quality(quality.encode(), "parameter 'quality'")
