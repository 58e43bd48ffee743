"""Streams: what several connections send, in which pieces and in which order.

A source of randomness in, a `Stream` out. Requests on a connection follow one another's answers, or are
pipelined, or send their body late; a connection's bytes are cut anywhere, also across requests; the pieces of
all connections are interleaved. Every connection ends with a request that closes it, so that the end of the
stream shows whether there was an answer too many, or with a client that goes away in the middle of a request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from tests.server.http.streams.asks import Ask, Call, Expected, cold, hot, too_large
from tests.server.http.streams.corpus import Corpus
from tests.server.http.streams.malformed import malformed, unknown_method

MAX_CONNECTIONS = 4
MAX_ASKS = 6

_LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LAST = Ask("last", _LAST, len(_LAST), Expected(Call("GET", "/v2/health/live"), ending="close"), "GET")
"""Its answer is the last thing on a connection: an answer too many would be seen before it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are sent at once. after: answers that must be there before; go_ahead: or a 100 (Continue).

    read: the client makes sure that the server has read the piece before anything else is sent.
    """

    data: bytes
    after: int = 0
    go_ahead: bool = False
    read: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """One connection. aborts: the last request is not sent whole, and the client closes."""

    asks: tuple[Ask, ...]
    pieces: tuple[Piece, ...]
    aborts: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """order: whose turn it is to send its next piece."""

    scripts: tuple[Script, ...]
    order: tuple[int, ...]

    @property
    def requests(self) -> int:
        return sum(len(script.asks) for script in self.scripts)


def cut(random: Random, data: bytes, near: int) -> list[bytes]:
    """In up to five pieces. near: a place (the end of the head) where cuts are tried more often."""
    if len(data) < 2 or random.random() < 0.4:
        return [data]
    places = {random.randint(1, len(data) - 1) for _ in range(random.randint(1, 3))}
    if random.random() < 0.5:
        places.add(min(max(1, near + random.randint(-5, 3)), len(data) - 1))
    at = [0, *sorted(places), len(data)]
    return [data[a:b] for a, b in pairwise(at)]


def pieces_of(random: Random, asks: tuple[Ask, ...]) -> list[Piece]:
    """Every byte of the requests, in order."""
    pieces: list[Piece] = []
    for i, ask in enumerate(asks):
        manner = random.choice(("answered", "answered", "pipelined", "late body"))
        top, rest = ask.raw[: ask.head_bytes], ask.raw[ask.head_bytes :]
        if ask.pauses or (manner == "late body" and rest):
            split = [*cut(random, top, len(top)), b"", *cut(random, rest, 0)]
        else:
            split = cut(random, ask.raw, ask.head_bytes)
        own: list[Piece] = []
        for data in split:
            if data:
                own.append(Piece(data, read=random.random() < 0.3))
            else:
                own.append(Piece(b"", after=i + 1 if ask.pauses else i, go_ahead=ask.pauses))
        if manner == "answered":
            own[0] = replace(own[0], after=i)
        pieces += own
    return _waits_moved(_glued(random, pieces))


def _glued(random: Random, pieces: list[Piece]) -> list[Piece]:
    """Some neighbors leave together, also the end of one request with the beginning of the next."""
    glued: list[Piece] = []
    for piece in pieces:
        last = glued[-1] if glued else None
        if last and last.data and piece.data and not piece.after and random.random() < 0.4:
            glued[-1] = replace(last, data=last.data + piece.data, read=piece.read)
        else:
            glued.append(piece)
    return glued


def _waits_moved(pieces: list[Piece]) -> list[Piece]:
    """A wait is a piece without bytes; it becomes part of the piece behind it."""
    moved: list[Piece] = []
    after, go_ahead = 0, False
    for piece in pieces:
        if piece.data:
            moved.append(replace(piece, after=max(after, piece.after), go_ahead=go_ahead))
            after, go_ahead = 0, False
        else:
            after, go_ahead = piece.after, piece.go_ahead
    return moved


def script_of(random: Random, corpus: Corpus, token: bytes, body_limit: int, number: int) -> Script:
    """One connection's requests, ended by one that closes it."""
    asks: list[Ask] = []
    for i in range(random.randint(1, MAX_ASKS)):
        kind = random.random()
        if kind < 0.6:
            asks.append(hot(random, corpus, 100 * number + i))
        elif kind < 0.9:
            asks.append(cold(random, token, 100 * number + i))
        elif kind < 0.93:
            asks.append(too_large(random, body_limit))
        elif kind < 0.95:
            asks.append(unknown_method(random))
        else:
            asks.append(malformed(random))
            break
    aborts = random.random() < 0.05
    if not aborts and asks[-1].expected.ending != "close":
        asks.append(LAST)
    pieces = pieces_of(random, tuple(asks))
    if aborts:
        final = pieces.pop()
        pieces.append(replace(final, data=final.data[: random.randint(0, len(final.data) - 1)]))
    return Script(tuple(asks), tuple(pieces), aborts)


def stream_of(random: Random, corpus: Corpus, token: bytes, body_limit: int) -> Stream:
    """Several connections with their pieces interleaved. body_limit: bytes past which a body is refused."""
    scripts = tuple(
        script_of(random, corpus, token, body_limit, random.randint(0, 9999))
        for _ in range(random.randint(1, MAX_CONNECTIONS))
    )
    order = [i for i, script in enumerate(scripts) for _ in script.pieces]
    if random.random() < 0.7:
        random.shuffle(order)
    return Stream(scripts, tuple(order))
