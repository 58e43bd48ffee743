"""POST /v1/admin/...: changes a running server.

    reload      {} or {"plan": PLAN}   loads the same plan again, or another; the old one serves meanwhile
    rollback    {}                     serves the previous generation again (its files may be gone)
    drain       {}                     makes the server not ready, as SIGTERM does, but keeps serving
    routing     {"policy": ..., "weights": {path: factor}, "default_budget_ms": ...}, each optional
    note        {"text": ...}          adds a line to the status page and the log
    embeddings  updates embedding rows (server/http/admin_embeddings.py)
    rollout/... sends a share of the requests to another version (server/rollout/routes.py)

Calls require a token with the right `admin` (server/access/access.py); if no such token exists, every call is
answered 403. A plan that cannot be opened is answered 422 with the reason, and the old one keeps serving.
Changes are logged, and each call adds a line to the logger `polyrec.audit` with the client, its address, the
call, the status and the reason for a rejection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from polyrec.models.errors import PolyrecError
from polyrec.models.fetching.url import ModelUrl, OptionalModelPlace
from polyrec.models.files import Strict, one_line
from polyrec.models.text import printable, public
from polyrec.planner.plan import BudgetMs, PathName, PathWeight, Plan, Policy, load_plan
from polyrec.server.app.background import run_in_thread
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.app.logs import MODEL
from polyrec.server.app.serving import Serving, differences, log_suffix
from polyrec.server.clock import clock
from polyrec.server.errors import Invalid, Malformed, RequestError, Stopping
from polyrec.server.http.connection.body import read_body
from polyrec.server.http.connection.reply import Reply, error_reply, json_reply
from polyrec.server.http.documents import DrainResponse, NoteResponse, ReloadResponse, RoutingResponse
from polyrec.server.http.openapi import ADMIN_ERRORS, Endpoint, Handler, RequestBody, Success
from polyrec.server.request_ids import SCOPE_KEY, log_extra
from polyrec.server.source.model_source import LoadedPlan

log = logging.getLogger("polyrec.admin")
audit = logging.getLogger("polyrec.audit")

MAX_BODY_BYTES = 65536
PlanLoader = Callable[[Path | ModelUrl | None], LoadedPlan]
"""Reads a plan, or for None the plan that the server was started with. Settings override values in both."""
Arguments = TypeVar("Arguments", bound=Strict)


class NoteRequest(Strict):
    """A line for the status page and the log. Folder names are removed from it."""

    text: Annotated[str, Field(min_length=1, max_length=500)]


NO_SUBJECT: Mapping[str, str] = {}


class ReloadRequest(Strict):
    """Loads a plan. plan: a plan file on the server or a URL; null for the plan the server started with."""

    plan: OptionalModelPlace = None


class EmptyRequest(Strict):
    """A call without arguments."""


class RoutingRequest(Strict):
    """The routing settings to change; others stay as they are."""

    policy: Policy | None = None
    weights: dict[PathName, PathWeight] | None = None
    default_budget_ms: BudgetMs | None = None


class Admin:
    """Performs the operator's actions on one engine, one at a time.

    load: reads plans; None if the server has no settings to read them with.
    """

    def __init__(self, engine: Engine, load: PlanLoader | None = None) -> None:
        self._engine = engine
        self._load = load

    async def perform(
        self,
        request: Request,
        action: str,
        max_bytes: int,
        answer: Callable[[bytes], Awaitable[Any]],
        subject: Mapping[str, str] = NO_SUBJECT,
        is_routine: Callable[[str], bool] = lambda client: False,
    ) -> Reply:
        """Authenticates one call, performs it and writes an audit line, at level info if it only reads or is
        routine.

        max_bytes: maximum size of the body.
        answer: converts the body to the response's JSON; may raise RequestError.
        subject: further fields of the audit line, which `answer` and `is_routine` may fill in. If it names a
        model, all log lines of the call do.
        is_routine: takes the client's name; called only for calls that succeed.
        """
        scope = request.scope
        peer = scope.get("client")
        try:
            client = self._engine.access.authorized("admin", scope["headers"], peer)
        except RequestError as e:
            return error_reply(e)
        status, why = HTTPStatus.INTERNAL_SERVER_ERROR, ""
        before = MODEL.set(subject.get("model", self._engine.name_in_log))
        try:
            reply = json_reply(await answer(await read_body(scope["headers"], request.receive, max_bytes)))
            status = HTTPStatus.OK
        except RequestError as e:
            reply, status, why = error_reply(e), e.status, f": {public(str(e))}"
        except asyncio.CancelledError as e:
            # the connection's reason, see AsgiRequest.abandon; uvicorn gives a text at the end of the drain
            reason = e.args[0] if e.args and isinstance(e.args[0], RequestError) else Stopping()
            status, why = reason.status, f": canceled: {reason}"
            raise
        finally:
            quiet = request.method == "GET" or (status == HTTPStatus.OK and is_routine(client.name))
            address, about = peer[0] if peer else "-", log_extra(scope.get(SCOPE_KEY, ""))
            about = {"fields": {**about.get("fields", {}), **subject}}
            level = logging.INFO if quiet else logging.WARNING
            audit.log(
                level, "%s by '%s' from %s: %d%s", action, client.name, address, status, why, extra=about
            )
            MODEL.reset(before)
        return reply

    async def reload(self, arguments: ReloadRequest) -> dict[str, Any]:
        """Opens a plan beside the current one, then replaces the current one."""
        return await self._open(self.reader(arguments.plan))

    def reader(self, file: Path | ModelUrl | None) -> Callable[[], LoadedPlan]:
        """Returns a function that reads a plan.

        file: None for the plan that the server was started with. Raises Invalid if there is none.
        """
        load = self._load
        if load is not None:
            return lambda: load(file)
        if file is None:
            raise Invalid("name a plan: this server was not started from one")
        if isinstance(file, ModelUrl):
            raise Invalid("this server has no settings for models by URL")
        return lambda: (load_plan(file), {})

    async def rollback(self, arguments: EmptyRequest) -> dict[str, Any]:
        """Serves the generation from before the last reload again."""
        self._engine.require_loaded()
        self._engine.check_no_rollout()
        previous = self._engine.previous
        if previous is None:
            raise Invalid("there is no earlier plan to roll back to")
        return await self._open(lambda: (previous.plan, previous.bundles))

    async def drain(self, arguments: EmptyRequest) -> dict[str, Any]:
        """Makes the server not ready, so that load balancers stop using it. It still answers requests."""
        self._engine.enter(LifecycleState.DRAINING)
        log.warning("draining, as /v1/admin/drain was called")
        return {"state": self._engine.state.value}

    async def note(self, arguments: NoteRequest) -> dict[str, Any]:
        """Adds a line to the status page; `polyrec loop` reports its steps this way."""
        text = public(printable(arguments.text))
        self._engine.metrics.events.add(clock(), "note", text)
        log.warning("note: %s", text)
        return {"text": text}

    async def routing(self, arguments: RoutingRequest) -> dict[str, Any]:
        """Changes policy, weights and default budget, starting with the next decision."""
        engine = self._engine
        plan = engine.plan
        routing = {
            **engine.routing.model_dump(),
            **({"policy": arguments.policy} if arguments.policy is not None else {}),
            **({"weights": arguments.weights} if arguments.weights is not None else {}),
        }
        try:
            changed: dict[str, Any] = {"routing": routing}
            if arguments.default_budget_ms is not None:
                changed["default_budget_ms"] = arguments.default_budget_ms
            new = Plan.model_validate({**plan.model_dump(), **changed}).routing
        except ValidationError as e:
            raise Invalid(one_line(e)) from None
        engine.set_routing(new)
        if arguments.default_budget_ms is not None:
            engine.set_default_budget(arguments.default_budget_ms)
        in_force = {**new.model_dump(), "default_budget_ms": engine.default_budget_ms}
        log.warning("routing is changed: %s", in_force)
        return in_force

    async def _open(self, read: Callable[[], LoadedPlan]) -> dict[str, Any]:
        engine = self._engine
        engine.check_no_rollout()
        async with engine.changing():
            try:
                serving = await run_in_thread(lambda: self._open_serving(read))
            except PolyrecError as e:
                reason = public(str(e))
                log.warning("a plan was not loaded, the old one is still served: %s", reason)
                raise Invalid(f"the plan was not loaded, the old one is still served: {reason}") from None
            changes = differences(engine.serving, serving)
            left_behind = engine.adopt(serving)
            engine.attach()
            names = [p.name for p in serving.paths]
            suffix = log_suffix(changes)
            log.warning("new plan served: %s, bundle version %s%s", ", ".join(names), serving.version, suffix)
            return {
                "paths": names,
                "bundle_version": serving.version,
                "changes": changes,
                "updates": {
                    "carried": {path: c.rows for path, c in serving.tiers.changes.items() if c.rows},
                    "left_behind": left_behind,
                },
            }

    def _open_serving(self, read: Callable[[], LoadedPlan]) -> Serving:
        plan, loaded = read()
        return self._engine.open(plan, loaded)


def admin_routes(admin: Admin) -> list[Endpoint]:
    """Returns all admin endpoints except for embedding updates."""

    def call(
        name: str,
        summary: str,
        request: type[Arguments],
        response: type[BaseModel],
        act: Callable[[Arguments], Awaitable[dict[str, Any]]],
    ) -> Endpoint:
        return admin_call(admin, name, summary, request, response, act, body_required=False)

    return [
        call("reload", "Load a plan and serve it", ReloadRequest, ReloadResponse, admin.reload),
        call("rollback", "Serve the previous plan again", EmptyRequest, ReloadResponse, admin.rollback),
        call("drain", "Make the server not ready", EmptyRequest, DrainResponse, admin.drain),
        call("note", "Show a line on the status page", NoteRequest, NoteResponse, admin.note),
        call("routing", "Change policy, weights or budget", RoutingRequest, RoutingResponse, admin.routing),
    ]


def admin_call(
    admin: Admin,
    name: str,
    summary: str,
    request: type[Arguments],
    response: type[BaseModel],
    act: Callable[[Arguments], Awaitable[Any]],
    body_required: bool = True,
) -> Endpoint:
    """Declares a call with a JSON body. act: performs it and returns the response as JSON or a document."""

    async def answer(received: Request) -> Reply:
        return await admin.perform(received, name, MAX_BODY_BYTES, perform)

    async def perform(body: bytes) -> Any:
        result = await act(parse_arguments(request, body.strip() or b"{}"))
        return result.model_dump(mode="json") if isinstance(result, BaseModel) else result

    return admin_endpoint(name, answer, summary, request, response, body_required)


def admin_endpoint(
    name: str,
    answer: Handler,
    summary: str,
    request: type[Strict],
    response: type[BaseModel],
    body_required: bool = True,
) -> Endpoint:
    """Declares an admin endpoint."""
    return Endpoint(
        f"/v1/admin/{name}",
        answer,
        method="POST",
        tag="administration",
        summary=summary,
        request=RequestBody(request, body_required),
        response=Success(response),
        errors=ADMIN_ERRORS,
        token="always",
    )


def parse_arguments(kind: type[Arguments], body: bytes) -> Arguments:
    """Parses the body of a call. Raises Malformed or Invalid."""
    try:
        return kind.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as e:
        raise Malformed(f"the body is not JSON: {e}") from None
    except ValidationError as e:
        raise Invalid(one_line(e)) from None
