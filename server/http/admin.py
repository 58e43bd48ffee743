"""POST /v1/admin/...: what an operator changes while the server answers. Needs the token.

    reload    {} or {"plan": FILE}           the plan is read again, or another one; the old serves until then
    rollback  {}                             what answered before the last reload (its files may be gone)
    drain     {}                             not ready any more, as after SIGTERM, but serves on until ended
    routing   {"policy": ..., "weights": {path: factor}, "default_budget_ms": ...}, each optional
    embeddings  new values of rows: server/http/admin_embeddings.py

Reload and rollback answer with the paths, the bundle's version and what became of updated rows: `carried` by
path, where the same rows are served again, and `left_behind`, where others are.

A call needs a token with the right `admin` (server/http/access.py); without any such token everything here is
403. A plan that cannot be opened is refused with 422 and what it says; what was served still is. The log has
every change, and a line of `polyrec.audit` for every call: which token, from where, what, and the status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.routing import Route

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict, one_line
from polyrec.models.text import public
from polyrec.planner.plan import BudgetMs, PathName, Plan, Policy, load_plan
from polyrec.server.app.background import run_in_thread
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.app.serving import Serving, open_serving
from polyrec.server.errors import Invalid, Malformed, NotReady, RequestError
from polyrec.server.http.connection.body import read_body
from polyrec.server.http.connection.reply import Reply, error_reply, json_reply

log = logging.getLogger("polyrec.admin")
audit = logging.getLogger("polyrec.audit")

MAX_BODY_BYTES = 65536
Opened = tuple[Plan, Mapping[Path, Bundle]]
"""A plan, and those of its bundles that are loaded already."""
Opener = Callable[[Path | None], Opened]
"""Reads a plan file, or for None what the server was started with; settings win over either."""
Model = TypeVar("Model", bound=Strict)


class Reload(Strict):
    """plan: another plan file, as the server sees it; None reads again what it was started with."""

    plan: Path | None = None


class Nothing(Strict):
    """A call without arguments."""


class Reroute(Strict):
    """What is to change; the rest stays."""

    policy: Policy | None = None
    weights: dict[PathName, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    default_budget_ms: BudgetMs | None = None


class Admin:
    """The operator's actions on one engine, one at a time. opener: None if no settings are to be kept."""

    def __init__(self, engine: Engine, opener: Opener | None = None) -> None:
        self._engine = engine
        self._opener = opener
        self._lock = asyncio.Lock()

    async def perform(
        self, request: Request, act: str, most_bytes: int, answer: Callable[[bytes], Awaitable[Any]]
    ) -> Reply:
        """The reply to one call, if its token allows it. answer: the body -> what goes back as JSON.

        Leaves an audit line. most_bytes: of the body.
        """
        scope = request.scope
        peer = scope.get("client")
        try:
            client = self._engine.access.administrator(scope["headers"], peer)
        except RequestError as e:
            return error_reply(e)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            reply = json_reply(await answer(await read_body(scope["headers"], request.receive, most_bytes)))
            status = HTTPStatus.OK
        except RequestError as e:
            reply, status = error_reply(e), e.status
        finally:
            audit.warning("%s by '%s' from %s: %d", act, client.name, peer[0] if peer else "-", status)
        return reply

    async def reload(self, asked: Reload) -> dict[str, Any]:
        """Opens the plan beside what is served, then takes over."""
        file, opener = asked.plan, self._opener
        if opener is not None:
            return await self._open(lambda: opener(file))
        if file is None:
            raise Invalid("name a plan: this server was not started from one")
        return await self._open(lambda: (load_plan(file), {}))

    async def rollback(self, asked: Nothing) -> dict[str, Any]:
        """Serves again what answered before the last reload."""
        before = self._engine.previous
        if before is None:
            raise Invalid("there is no earlier plan to go back to")
        return await self._open(lambda: (before.plan, before.bundles))

    async def drain(self, asked: Nothing) -> dict[str, Any]:
        """A load balancer sends no more; what comes is still answered."""
        self._engine.enter(LifecycleState.DRAINING)
        log.warning("draining, as /v1/admin/drain was called")
        return {"state": self._engine.state.value}

    async def routing(self, asked: Reroute) -> dict[str, Any]:
        """From the next decision on."""
        engine = self._engine
        plan, now = engine.plan, engine.routing
        routing = {
            **now.model_dump(),
            **({"policy": asked.policy} if asked.policy is not None else {}),
            **({"weights": asked.weights} if asked.weights is not None else {}),
        }
        try:
            changed: dict[str, Any] = {"routing": routing}
            if asked.default_budget_ms is not None:
                changed["default_budget_ms"] = asked.default_budget_ms
            bent = Plan.model_validate({**plan.model_dump(), **changed}).routing
        except ValidationError as e:
            raise Invalid(one_line(e)) from None
        engine.route(bent)
        if asked.default_budget_ms is not None:
            engine.default_budget_s = asked.default_budget_ms / 1e3
        in_force = {**bent.model_dump(), "default_budget_ms": 1e3 * engine.default_budget_s}
        log.warning("routing is changed: %s", in_force)
        return in_force

    async def _open(self, read: Callable[[], Opened]) -> dict[str, Any]:
        if self._lock.locked():
            raise NotReady("another plan is being opened; try again when it is done")
        if self._engine.state is LifecycleState.LOADING:
            raise NotReady("the server is still loading what it was started with; try again when it is ready")
        async with self._lock:
            engine = self._engine
            try:
                serving = await run_in_thread(lambda: self._opened(read))
            except PolyrecError as e:
                why = public(str(e))
                log.warning("a plan is not opened, the old one still serves: %s", why)
                raise Invalid(f"the plan is not opened, the old one still serves: {why}") from None
            left = engine.adopt(serving)
            engine.attach()
            names = [p.name for p in serving.paths]
            log.warning("another plan serves: %s, bundle version %s", ", ".join(names), serving.version)
            return {
                "paths": names,
                "bundle_version": serving.version,
                "updates": {
                    "carried": {path: c.rows for path, c in serving.tiers.changes.items() if c.rows},
                    "left_behind": left,
                },
            }

    def _opened(self, read: Callable[[], Opened]) -> Serving:
        plan, loaded = read()
        return open_serving(plan, self._engine.metrics, loaded, self._engine.update_store)


def admin_routes(admin: Admin) -> list[Route]:
    """The pages, all behind the token."""

    def page(
        name: str, kind: type[Model], act: Callable[[Model], Awaitable[dict[str, Any]]]
    ) -> Callable[..., Any]:
        async def answer(request: Request) -> Reply:
            return await admin.perform(request, name, MAX_BODY_BYTES, lambda body: act(_parsed(kind, body)))

        return answer

    pages = {
        "reload": page("reload", Reload, admin.reload),
        "rollback": page("rollback", Nothing, admin.rollback),
        "drain": page("drain", Nothing, admin.drain),
        "routing": page("routing", Reroute, admin.routing),
    }
    return [Route(f"/v1/admin/{name}", endpoint, methods=["POST"]) for name, endpoint in pages.items()]


def _parsed(kind: type[Model], body: bytes) -> Model:
    try:
        return kind.model_validate(orjson.loads(body) if body.strip() else {})
    except orjson.JSONDecodeError as e:
        raise Malformed(f"the body is not JSON: {e}") from None
    except ValidationError as e:
        raise Invalid(one_line(e)) from None
