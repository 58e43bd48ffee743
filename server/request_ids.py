"""Request ids for answers, logs and traces, either from the client or generated.

A generated id consists of a random prefix per process and a counter, since drawing random bytes for each
request would cost more than the rest of an answer's head.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

MAX_BYTES = 128
"""Maximum length of a client's id."""
SCOPE_KEY = "polyrec.request_id"
"""Key of the id (a string) in an ASGI scope."""

_VISIBLE = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_BYTES)
_PREFIX = os.urandom(6).hex().encode()
_counter = itertools.count(1)


def new_request_id() -> bytes:
    """Returns a new unique id."""
    return b"%s-%x" % (_PREFIX, next(_counter))


def request_id(given: bytes | None) -> bytes:
    """Returns the client's id if it is 1 to MAX_BYTES characters of visible ASCII, otherwise a new one."""
    return given if given is not None and _VISIBLE.fullmatch(given) else new_request_id()


def id_to_join(given: str | None, of_call: str) -> str:
    """Returns the id by which labels refer to a request: a valid id in its body, else the call's id.

    The body's id comes first since a gRPC stream has many requests in one call, and since some client
    libraries only expose the body of an answer.
    """
    if given is not None and given.isascii() and _VISIBLE.fullmatch(given.encode()):
        return given
    return of_call


def log_extra(of_request: bytes | str) -> dict[str, Any]:
    """Returns the `extra` argument of a log record about one request; empty without an id."""
    text = of_request if isinstance(of_request, str) else of_request.decode("ascii")
    return {"fields": {"request_id": text}} if text else {}
