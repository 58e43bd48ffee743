"""Declares the admin calls of a rollout, which control.py performs.

    POST /v1/admin/rollout/start     {"plan": FILE, "share": .05, "by": FEATURE, "bounds": {...}}
    POST /v1/admin/rollout/share     {"share": .2}
    POST /v1/admin/rollout/promote   {"reason": TEXT}
    POST /v1/admin/rollout/rollback  {"reason": TEXT}
    GET  /v1/admin/rollout           the rollout in progress with its figures, and the last ended ones

Each requires a token with the right `admin` and returns the status.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from polyrec.server.http.admin import MAX_BODY_BYTES, Admin, Arguments, admin_call
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.openapi import ADMIN_ERRORS, Endpoint, Success
from polyrec.server.rollout.control import RolloutControl
from polyrec.server.rollout.documents import EndRequest, RolloutStatus, ShareRequest, StartRequest


def rollout_routes(admin: Admin, control: RolloutControl) -> list[Endpoint]:
    """Returns the endpoints for one model's rollouts."""

    def call(
        name: str,
        summary: str,
        request: type[Arguments],
        act: Callable[[Arguments], Awaitable[RolloutStatus]],
        body_required: bool = True,
    ) -> Endpoint:
        return admin_call(admin, f"rollout/{name}", summary, request, RolloutStatus, act, body_required)

    async def status(received: Request) -> Reply:
        return await admin.perform(received, "rollout", MAX_BODY_BYTES, describe)

    async def describe(body: bytes) -> dict[str, Any]:
        return control.status().model_dump(mode="json")

    return [
        call("start", "Try another version on a share of the requests", StartRequest, control.start),
        call("share", "Change the share", ShareRequest, control.share),
        call("promote", "Serve the canary to all", EndRequest, control.promote, False),
        call("rollback", "End the rollout", EndRequest, control.rollback, False),
        Endpoint(
            "/v1/admin/rollout",
            status,
            tag="administration",
            summary="The rollout in progress, and the last ones",
            response=Success(RolloutStatus),
            errors=ADMIN_ERRORS,
            token="always",
        ),
    ]
