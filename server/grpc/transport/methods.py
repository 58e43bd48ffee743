"""Runs a call's method in a task: any but ModelInfer, which needs none (infer_call.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from grpc import StatusCode

from polyrec.server.errors import RequestError
from polyrec.server.grpc.transport.calls import end_canceled, fail
from polyrec.server.grpc.transport.core import IncomingCall

log = logging.getLogger("polyrec.grpc")

Method = Callable[[IncomingCall], Awaitable[bytes | None]]
"""Answers a call; returns its response, None after a stream. A RequestError is the call's status."""


def run_method(method: Method, call: IncomingCall) -> None:
    """Has a call answered; a client that leaves cancels the task."""
    task = asyncio.get_running_loop().create_task(_run(method, call))
    # a task that is referred to by nothing else may be collected
    call.on_cancel = task.cancel


async def _run(method: Method, call: IncomingCall) -> None:
    try:
        response = await method(call)
    except asyncio.CancelledError:
        end_canceled(call)
        raise
    except Exception as e:
        if not isinstance(e, RequestError):
            log.error("%s failed", call.method, exc_info=e)
        fail(call, e)
    else:
        call.finish(StatusCode.OK, message=response)
