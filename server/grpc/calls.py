"""Functions that all gRPC methods share: a call's scope, deadline, cancellation and error status."""

from __future__ import annotations

import asyncio
import math
from typing import Any, NoReturn
from urllib.parse import unquote

from starlette.types import Scope

from polyrec.server.clock import clock
from polyrec.server.errors import DeadlinePassed, RequestError
from polyrec.server.grpc.status import status_of
from polyrec.server.http.connection.body import ClientGone, header
from polyrec.server.http.connection.head import REQUEST_ID
from polyrec.server.request_ids import SCOPE_KEY, request_id

TRANSIT_S = 0.01
"""A call canceled within this time before its deadline counts as ended by the client's earlier deadline."""


def scope_of(context: Any, path: str, secure: bool) -> Scope:
    """Returns a call as an ASGI scope, with metadata as headers. path: the method's path, from `/`."""
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in context.invocation_metadata()
    ]
    return {
        "type": "grpc",
        "path": path,
        "scheme": "https" if secure else "http",
        "http_version": "2",
        "headers": headers,
        "client": peer_of(context.peer()),
        SCOPE_KEY: request_id(header(headers, REQUEST_ID)).decode(),
    }


def id_metadata(scope: Scope) -> tuple[tuple[str, str], ...]:
    """Returns trailing metadata with the request's id."""
    return ((REQUEST_ID.decode(), scope[SCOPE_KEY]),)


def peer_of(text: str) -> tuple[str, int] | None:
    """Parses `ipv4:127.0.0.1:50051` or `ipv6:%5B::1%5D:50051` to address and port; None for other kinds."""
    kind, _, where = text.partition(":")
    address, _, port = unquote(where).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return address.strip("[]"), int(port)


def deadline_s(context: Any) -> float:
    """Returns the call's deadline in seconds on `clock`, infinity if it has none."""
    left_s = context.time_remaining()
    return math.inf if left_s is None else clock() + left_s


def end_of(context: Any) -> RequestError:
    """Returns the error of a call that gRPC canceled because its deadline passed or its client left."""
    left_s = context.time_remaining()
    if left_s is not None and left_s <= TRANSIT_S:
        return DeadlinePassed()
    return ClientGone("the client canceled the call")


def is_canceled() -> bool:
    """Whether the current task itself is being canceled, not just something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def abort(context: Any, error: Exception, trailing: tuple[tuple[str, str], ...] = ()) -> NoReturn:
    """Ends a call with an error's status. trailing: additional metadata."""
    status = status_of(error)
    await context.abort(status.code, status.message, (*status.trailing, *trailing))
    raise AssertionError("abort raises")
