"""Requests of the stream fuzzer: how each is written to the wire, and what its answer must be.

A source of randomness in, an `Ask` out: the bytes of one request and its `Expected`. A well-formed request
carries the plain `Call` that it means, without framing and hop-by-hop headers, which the reference
(reference.py) answers; a malformed one carries the statuses that HTTP and DESIGN.md allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from polyrec.loadtest.traffic.request_bodies import PREDICT
from tests.server.http.streams.corpus import Body, Corpus

Headers = tuple[tuple[bytes, bytes], ...]
Ending = Literal["keep", "close", "either"]
Compared = Literal["exact", "keys", "status"]


@dataclass(frozen=True, slots=True)
class Call:
    """The meaning of a request, however it is written. headers: those that can change the answer."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Expected:
    """The answer that a request must get.

    call: answered by the reference; None for a malformed request, whose status is one of `statuses`.
    ending: what becomes of the connection afterwards. compared: how much of the body must be equal; pages
    that show counters or clocks are compared by status and keys.
    """

    call: Call | None = None
    statuses: frozenset[int] = frozenset()
    ending: Ending = "keep"
    compared: Compared = "exact"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. raw: all of its bytes; head_bytes: how many of them are its head.

    pauses: the client waits behind the head for 100 (Continue) or a final answer.
    """

    name: str
    raw: bytes
    head_bytes: int
    expected: Expected
    method: str = "POST"
    pauses: bool = False


BUDGET, NO_TIME = b"X-Latency-Budget-Ms", b"0.00001"
NOISE: Headers = (
    (b"User-Agent", b"curl/8.5.0"),
    (b"Accept", b"*/*"),
    (b"Cookie", b"session=1; Content-Length: 7"),
    (b"X-Junk", b"\xe9\xff Transfer-Encoding: chunked"),
    (b"X-Long", b"y" * 1500),
    (b"Connection", b"keep-alive"),
    (b"Content-Type", b"application/json"),
    (b"TE", b"trailers"),
    (b"X-Empty", b""),
)
OPTIONS: Headers = (
    (BUDGET, b"60000"),
    (BUDGET, NO_TIME),
    (BUDGET, b"soon"),
    (b"X-Polyrec-Priority", b"0"),
    (b"X-Polyrec-Priority", b"-1"),
    (b"X-Polyrec-Quality", b"any"),
    (b"X-Polyrec-Quality", b"best"),
    (b"Accept-Encoding", b"gzip"),
    (b"Accept-Encoding", b"deflate, gzip;q=0"),
)
H2C: Headers = (
    (b"Connection", b"Upgrade, HTTP2-Settings"),
    (b"Upgrade", b"h2c"),
    (b"HTTP2-Settings", b"AAMAAABkAAQAoAAAAAIAAAAA"),
)
WEBSOCKET: Headers = (
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    (b"Sec-WebSocket-Version", b"13"),
)
UPGRADES = (H2C, WEBSOCKET, ((b"Connection", b"upgrade"), (b"Upgrade", b"foo/2")))
TRAILERS: tuple[bytes, ...] = (
    b"X-Checksum: 1\r\n",
    b"X-Latency-Budget-Ms: 0.00001\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Connection: close\r\n",
)
PAGES: tuple[tuple[str, Compared], ...] = (
    ("/livez", "exact"),
    ("/readyz", "exact"),
    ("/metrics", "status"),
    ("/", "status"),
    ("/v1/plan", "keys"),
    ("/v1/paths", "keys"),
    ("/v1/route?rows=5&budget_ms=20", "keys"),
    ("/v2", "exact"),
    ("/v2/health/live", "exact"),
    ("/v2/models/dlrm", "exact"),
    ("/v2/models/dlrm/ready", "exact"),
    ("/v2/models/dlrm/stats", "keys"),
    ("/v2/models/other", "exact"),
    ("/v1/predict", "exact"),  # 405
    ("/v1/admin/routing", "exact"),  # 405
)
SMUGGLED = b"GET /v1/paths HTTP/1.1\r\nHost: x\r\n\r\n"


def cased(random: Random, name: bytes) -> bytes:
    """A header's name as some client would write it."""
    return random.choice((name, name, name.lower(), name.upper()))


def head(random: Random, line: bytes, headers: Headers) -> bytes:
    """A request's head; names and the space around values vary."""
    spaces = (b": ", b": ", b": ", b":", b":  ", b":\t")
    lines = [cased(random, name) + random.choice(spaces) + value for name, value in headers]
    return b"\r\n".join([line, *lines, b"", b""])


def chunked(random: Random, body: bytes) -> bytes:
    """The body in chunks of random sizes, now and then with extensions and trailers."""
    pieces, rest = [], body
    most = max(random.choice((7, 64, 4096, 1 << 20)), len(body) // 300)  # within the limit on small chunks
    while rest:
        size = random.randint(1, most)
        piece, rest = rest[:size], rest[size:]
        extension = random.choice((b"", b"", b"", b";name=value"))
        pieces.append(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece))
    trailers = random.choice((b"", b"", *TRAILERS))
    return b"".join([*pieces, b"0\r\n", trailers, b"\r\n"])


def written(
    random: Random,
    name: str,
    call: Call,
    ending: Ending = "keep",
    compared: Compared = "exact",
    upgrade: Headers = (),
) -> Ask:
    """A well-formed request in one of the many ways to write it."""
    headers = [*call.headers, *upgrade]
    for noise in random.sample(NOISE, random.randint(0, 2)):
        if not (upgrade and noise[0] == b"Connection"):
            headers.append(noise)
    version = b"1.0" if random.random() < 0.04 else b"1.1"
    pauses, framed = False, call.body
    if call.body or call.method == "POST":
        if version == b"1.1" and random.random() < 0.25:
            headers.append((b"Transfer-Encoding", random.choice((b"chunked", b"Chunked"))))
            framed = chunked(random, call.body)
        else:
            headers.append((b"Content-Length", b"%d" % len(call.body)))
        if call.body and version == b"1.1" and random.random() < 0.1:
            headers.append((b"Expect", b"100-continue"))
            pauses = random.random() < 0.7
    if version == b"1.0":
        kept = any(name == b"Connection" and value == b"keep-alive" for name, value in headers)
        ending = "either" if kept or upgrade else "close"
    elif random.random() < 0.06 and not upgrade:
        headers = [h for h in headers if h[0] != b"Connection"]
        headers.append((b"Connection", random.choice((b"close", b"Close"))))
        ending = "close"
    # those of the call keep their order, which can matter: of two budgets the last counts
    mine = [h for h in headers if h in call.headers]
    for header in headers:
        if header not in call.headers:
            mine.insert(random.randint(0, len(mine)), header)
    headers = mine
    host = random.choice((b"x", b"127.0.0.1:8000", b"[::1]"))
    headers.insert(random.randint(0, len(headers)), (b"Host", host))
    target = call.target
    if random.random() < 0.04:
        target = f"http://x{target}"
    empty_line = b"\r\n" if random.random() < 0.03 else b""
    line = b"%s %s HTTP/%s" % (call.method.encode(), target.encode(), version)
    top = empty_line + head(random, line, tuple(headers))
    expected = Expected(call, ending=ending, compared=compared)
    return Ask(name, top + framed, len(top), expected, call.method, pauses)


def hot(random: Random, corpus: Corpus, number: int) -> Ask:
    """A prediction or ranking, right or wrong. number: makes the request's id its own."""
    kind = random.random()
    options: Headers = ()
    if random.random() < 0.3:
        options = tuple(random.sample(OPTIONS, random.randint(1, 2)))
    if kind < 0.75:
        body = random.choice(corpus.right).with_id(f"n{number}")
        if random.random() < 0.15:
            body = body.packed()
    elif kind < 0.85:
        body = Body(PREDICT, b'{"instances": [{"nobody-%d": 1}]}' % number)
    else:
        body = random.choice(corpus.wrong[random.choice((400, 422))])
    upgrade = random.choice(UPGRADES) if random.random() < 0.1 else ()
    target = body.target
    if random.random() < 0.05:
        target += random.choice(("?", "?a=1"))
    call = Call("POST", target, (*options, *body.headers), body.content)
    return written(random, "hot", call, upgrade=upgrade)


def cold(random: Random, token: bytes, number: int) -> Ask:
    """A page, an unknown page, a wrong method, or an operator's call with or without the token."""
    kind = random.random()
    if kind < 0.45:
        page, compared = random.choice(PAGES)
        method = random.choice(("GET", "GET", "HEAD"))
        upgrade = random.choice(UPGRADES) if random.random() < 0.05 else ()
        accepted = ((b"Accept-Encoding", b"gzip"),) if random.random() < 0.2 else ()
        return written(random, "page", Call(method, page, accepted), "keep", compared, upgrade)
    if kind < 0.55:
        method = random.choice(("GET", "HEAD", "POST"))
        return written(random, "unknown", Call(method, f"/v1/nowhere/{number}"))
    if kind < 0.62:
        body = random.choice((b"x", SMUGGLED))
        page, compared = random.choice(PAGES)
        return written(random, "GET with a body", Call("GET", page, (), body), "either", compared)
    if kind < 0.72:
        method, page = random.choice(
            (("PUT", "/v1/predict"), ("DELETE", "/livez"), ("PATCH", "/v1/rank"), ("OPTIONS", "/livez"))
        )
        body = random.choice((b"", SMUGGLED))
        ending: Ending = "either" if body else "keep"
        return written(random, "method", Call(method, page, (), body), ending)
    change = random.choice((b"", b"{}", b'{"default_budget_ms": 60000}', b'{"policy": "none"}', b"{"))
    if kind < 0.95:
        right = ((b"Authorization", b"Bearer " + token),)
        return written(random, "admin", Call("POST", "/v1/admin/routing", right, change), "keep")
    return written(random, "admin without token", Call("POST", "/v1/admin/routing", (), change), "either")


def too_large(random: Random, limit: int) -> Ask:
    """A body past the limit, all of it sent."""
    body = b" " * random.randint(limit + 1, 2 * limit)
    ask = written(random, "too large", Call("POST", PREDICT, (), body), "either", "status")
    return Ask(ask.name, ask.raw, ask.head_bytes, ask.expected, pauses=False)
