"""The plain reference, and the comparison of a server's streams with it.

A call is answered by the same application over ordinary ASGI in this process: one request, a scope and two
callables of its own, no connection. What was heard on a connection is compared with that, request by request.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import zlib
from typing import Any
from urllib.parse import unquote

import numpy as np
from starlette.types import ASGIApp, Message

from tests.server.http.streams.asks import BUDGET, NO_TIME, Ask, Call, Compared
from tests.server.http.streams.client import Answer, Heard
from tests.server.http.streams.scripts import Script, Stream

TOLERANCE = 1e-5
"""Between probabilities of two executions."""
RELEVANT = (
    b"content-type",
    b"content-encoding",
    b"vary",
    b"allow",
    b"www-authenticate",
    b"inference-header-content-length",
    b"x-polyrec-path",
)
OUT_OF_TIME = frozenset({429, 504})
"""Statuses of a budget that cannot be kept: rejected unread, or expired after the body was checked."""
MAX_KEPT = 20_000


class Reference:
    """Answers of one application, each computed once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._known: dict[Call, Answer] = {}

    async def answer(self, call: Call) -> Answer:
        """Returns the answer that a call must get."""
        if call not in self._known:
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[call] = await answer_of(self._app, call)
        return self._known[call]


async def answer_of(app: ASGIApp, call: Call) -> Answer:
    """One call by ASGI."""
    path, _, query = call.target.partition("?")
    headers = [(name.lower(), value) for name, value in call.headers]
    if call.body or call.method == "POST":
        headers.append((b"content-length", b"%d" % len(call.body)))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"x"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    sent: list[Message] = []
    body = [call.body]

    async def receive() -> Message:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await asyncio.Future()  # the client stays until it has its answer
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *bodies = sent
    content = b"".join(message.get("body", b"") for message in bodies)
    headers = [(name.lower(), value) for name, value in start["headers"]]
    return Answer(start["status"], tuple(headers), b"" if call.method == "HEAD" else content)


async def differences(stream: Stream, heard: list[Heard], reference: Reference) -> list[str]:
    """Lists the wrong answers of a stream, one line each."""
    found: list[str] = []
    for i, (script, own) in enumerate(zip(stream.scripts, heard, strict=True)):
        found += [f"connection {i}, {line}" for line in await _of_connection(script, own, reference)]
    return found


async def _of_connection(script: Script, heard: Heard, reference: Reference) -> list[str]:
    asks, answers = script.asks, heard.answers
    found: list[str] = []
    closed_by: int | None = None
    for i, (ask, answer) in enumerate(zip(asks, answers, strict=False)):
        found += [f"request {i} ({ask.name}): {line}" for line in await _of_answer(ask, answer, reference)]
        closes = answer.closes or (answer.version == b"HTTP/1.0")
        ending = ask.expected.ending
        if ending == "keep" and closes:
            found.append(f"request {i} ({ask.name}): status {answer.status} closes a connection that goes on")
        if ending == "close" and not closes:
            found.append(f"request {i} ({ask.name}): status {answer.status} does not say that it closes")
        if closes or ending == "close":
            closed_by = i
            break
    last = len(asks) - 1 if closed_by is None else closed_by
    if len(answers) > last + 1:
        found.append(f"{len(answers) - last - 1} answers too many: {answers[last + 1]}")
    if heard.broken:
        found.append(heard.broken)
    if heard.silent:
        found.append(f"request {len(answers)}: {heard.silent}")
    elif len(answers) <= last and not script.aborts and not _sent_too_much(script, heard):
        found.append(f"request {len(answers)} ({asks[len(answers)].name}): closed without an answer")
    return found


def _sent_too_much(script: Script, heard: Heard) -> bool:
    """Whether the last answer was lost because the client went on after a request that ends the connection.

    What arrives at a closed socket resets it; only a client that keeps to HTTP/1.1 can count on the answer.
    """
    number = len(heard.answers)
    expected = script.asks[number].expected
    plain = expected.call is not None and expected.ending != "keep" and expected.compared != "status"
    return heard.reset and plain and number < len(script.asks) - 1


async def _of_answer(ask: Ask, answer: Answer, reference: Reference) -> list[str]:
    expected = ask.expected
    if expected.call is None:
        if answer.status not in expected.statuses:
            return [f"status {answer.status}, expected {sorted(expected.statuses)}"]
        return [] if answer.status == 405 or ask.method == "HEAD" else _error_in_json(answer)
    right = await reference.answer(expected.call)
    if answer.status != right.status:
        if _hopeless(expected.call) and not {answer.status, right.status}.isdisjoint(OUT_OF_TIME):
            return [] if min(answer.status, right.status) >= 400 else ["answered although it had no time"]
        return [f"status {answer.status} {answer.body[:200]!r}, expected {right.status} {right.body[:200]!r}"]
    found = []
    for name in RELEVANT:
        if answer.header(name) != right.header(name):
            found.append(f"header {name.decode()} {answer.header(name)!r}, expected {right.header(name)!r}")
    if answer.header(b"content-length") is None and answer.header(b"transfer-encoding") is None:
        found.append("neither content-length nor transfer-encoding")
    if not found and ask.method != "HEAD" and not same_body(answer, right, expected.compared):
        found.append(f"body {answer.body[:300]!r}, expected {right.body[:300]!r}")
    return found


def _hopeless(call: Call) -> bool:
    """Whether its budget has passed before anything could be done; the last one counts."""
    budgets = [value for name, value in call.headers if name == BUDGET]
    return bool(budgets) and budgets[-1] == NO_TIME


def _error_in_json(answer: Answer) -> list[str]:
    try:
        line = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        line = None
    return [] if isinstance(line, str) and line else [f"no error in JSON: {answer.body[:200]!r}"]


def same_body(answer: Answer, right: Answer, compared: Compared) -> bool:
    """Equal but for probabilities within TOLERANCE; of pages that change, the same keys."""
    if compared == "status":
        return bool(answer.body)
    mine, its = plain(answer), plain(right)
    length = right.header(b"inference-header-content-length")
    if length is not None:
        end = int(length)
        if mine[end:] != its[end:] and not np.allclose(
            np.frombuffer(mine[end:], "<f4"), np.frombuffer(its[end:], "<f4"), atol=TOLERANCE
        ):
            return False
        mine, its = mine[:end], its[:end]
    if mine == its:
        return True
    try:
        a, b = json.loads(mine), json.loads(its)
    except ValueError:
        return False
    if compared == "keys":
        return isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys()
    return close(a, b)


def plain(answer: Answer) -> bytes:
    """The body, decompressed."""
    coding = answer.header(b"content-encoding")
    if coding == b"gzip":
        return gzip.decompress(answer.body)
    return zlib.decompress(answer.body) if coding == b"deflate" else answer.body


def close(a: Any, b: Any) -> bool:
    """JSON documents that are equal but for the last digits of their numbers."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=0, abs_tol=TOLERANCE)
    return type(a) is type(b) and bool(a == b)
