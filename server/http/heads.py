"""Heads of requests that were parsed before: a client sends the same one again, but for its Content-Length.

To find one takes a microsecond, to parse it as long as everything else that a refusal needs. What is told of
a known head is what the parser made of it: all bytes are the same but the digits of the one length, and the
parser's answer to those is their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from server.http.inference import Inference
from server.http.options import RequestOptions

LENGTHS = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
"""As clients write it; others are parsed each time."""
MOST_DIGITS = 9
MOST_BYTES = 2048
"""Of a head that is remembered."""
MOST_HEADS = 1024


@dataclass(frozen=True, slots=True)
class Head:
    """Of a plain request to a hot endpoint. scope: as of ASGI, of the first connection that sent it, and with
    the length that was sent first. plain: the gate may judge it.
    """

    endpoint: Inference
    scope: dict[str, Any]
    encoding: str | None
    keep_alive: bool
    options: RequestOptions
    plain: bool


class Heads:
    """Of one server. A head that is met only once costs its place for a while."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def get(self, key: bytes) -> Head | None:
        """key: of `split`."""
        return self._known.get(key)

    def learn(self, key: bytes, head: Head) -> None:
        """The parser took the head of that key for this one."""
        known = self._known
        if len(key) <= MOST_BYTES and key not in known:
            if len(known) >= MOST_HEADS:
                del known[next(iter(known))]
            known[key] = head


def split(data: bytes) -> tuple[bytes, int, int] | None:
    """A request -> (its head without the digits of its length, where its body begins, that length).

    None if it has no whole head or no length in the usual place.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    for name in LENGTHS:
        at = data.find(name, 0, end)
        if at >= 0:
            at += len(name)
            after = data.find(b"\r\n", at, end + 2)
            digits = data[at:after]
            if digits.isdigit() and len(digits) <= MOST_DIGITS:
                return data[:at] + data[after : end + 4], end + 4, int(digits)
            return None
    return None
