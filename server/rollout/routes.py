"""The admin calls of a rollout.

    POST /v1/admin/rollout/start     {"plan": FILE, "share": .05, "by": FEATURE, "bounds": {...}}
    POST /v1/admin/rollout/share     {"share": .2}
    POST /v1/admin/rollout/promote   {"reason": TEXT}
    POST /v1/admin/rollout/rollback  {"reason": TEXT}
    GET  /v1/admin/rollout           the rollout in progress with its figures, and the last ones

Each needs a token with the right `admin`, and answers with the status.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from polyrec.server.http.admin import MAX_BODY_BYTES, Admin, Arguments, admin_endpoint, parse_arguments
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.openapi import ADMIN_ERRORS, Endpoint
from polyrec.server.rollout.control import RolloutControl
from polyrec.server.rollout.documents import EndRequest, RolloutStatus, ShareRequest, StartRequest


def rollout_routes(admin: Admin, control: RolloutControl) -> list[Endpoint]:
    """All calls of one model's rollouts."""

    def endpoint(
        name: str,
        summary: str,
        request: type[Arguments],
        act: Callable[[Arguments], Awaitable[RolloutStatus]],
        body_required: bool = True,
    ) -> Endpoint:
        async def answer(received: Request) -> Reply:
            return await admin.perform(received, f"rollout/{name}", MAX_BODY_BYTES, perform)

        async def perform(body: bytes) -> dict[str, Any]:
            return _json(await act(parse_arguments(request, body.strip() or b"{}")))

        return admin_endpoint(f"rollout/{name}", answer, summary, request, RolloutStatus, body_required)

    async def status(received: Request) -> Reply:
        return await admin.perform(received, "rollout", MAX_BODY_BYTES, describe)

    async def describe(body: bytes) -> dict[str, Any]:
        return _json(control.status())

    return [
        endpoint("start", "Try another version on a part of the requests", StartRequest, control.start),
        endpoint("share", "Change the part", ShareRequest, control.share),
        endpoint("promote", "Serve the version under trial to all", EndRequest, control.promote, False),
        endpoint("rollback", "End the rollout", EndRequest, control.rollback, False),
        Endpoint(
            "/v1/admin/rollout",
            status,
            tag="administration",
            summary="The rollout in progress, and the last ones",
            response=RolloutStatus,
            errors=ADMIN_ERRORS,
            token="always",
        ),
    ]


def _json(status: RolloutStatus) -> dict[str, Any]:
    return status.model_dump(mode="json")
