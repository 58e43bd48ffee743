"""Ids of requests in answers, logs and traces: the client's, or generated here.

A made id is random for each process and counted within it, as drawing random bytes for each request would
cost more than the rest of writing an answer's head.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

MAX_BYTES = 128
"""Maximum length of a client's id."""
SCOPE_KEY = "polyrec.request_id"
"""Key of the id, as a string, in an ASGI scope."""

_VISIBLE = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_BYTES)
_PREFIX = os.urandom(6).hex().encode()
_counter = itertools.count(1)


def new_request_id() -> bytes:
    """Makes an id that no other request has."""
    return b"%s-%x" % (_PREFIX, next(_counter))


def request_id(given: bytes | None) -> bytes:
    """Returns a client's id, or a new one if that is not 1 to MAX_BYTES characters of visible ASCII."""
    return given if given is not None and _VISIBLE.fullmatch(given) else new_request_id()


def id_to_join(given: str | None, of_call: str) -> str:
    """Returns the id that labels name a request by: the one in its body, if there is a valid one.

    A stream has many requests in one call, and some clients show their users only the body of an answer.
    """
    if given is not None and given.isascii() and _VISIBLE.fullmatch(given.encode()):
        return given
    return of_call


def log_extra(of_request: bytes | str) -> dict[str, Any]:
    """The `extra` of a log record that concerns one request; empty without an id."""
    text = of_request if isinstance(of_request, str) else of_request.decode("ascii")
    return {"fields": {"request_id": text}} if text else {}
