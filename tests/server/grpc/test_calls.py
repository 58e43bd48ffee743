"""Tests the scope of a call, its deadline, and why it was canceled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from polyrec.server.clock import clock
from polyrec.server.errors import DeadlinePassed
from polyrec.server.grpc.calls import TRANSIT_S, deadline_s, end_of, id_metadata, peer_of, scope_of
from polyrec.server.http.connection.body import ClientGone


@dataclass
class Context:
    """gRPC's side of a call."""

    left_s: float | None = None
    metadata: tuple[tuple[str, Any], ...] = ()

    def time_remaining(self) -> float | None:
        return self.left_s

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:10.0.0.7:4711"


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:50051", ("127.0.0.1", 50051)),
        ("ipv6:%5B::1%5D:50051", ("::1", 50051)),
        ("ipv6:[fe80::1]:1", ("fe80::1", 1)),
        ("unix:/run/socket", None),
        ("ipv4:127.0.0.1", None),
        ("", None),
    ],
)
def test_peers(text: str, peer: tuple[str, int] | None) -> None:
    assert peer_of(text) == peer


@pytest.mark.parametrize("secure", [True, False])
def test_a_scope_has_metadata_as_headers_and_the_clients_id(secure: bool) -> None:
    context = Context(metadata=(("x-request-id", "shop-7"), ("trace-bin", b"\x00\xff")))
    scope = scope_of(context, "/service/Method", secure)
    assert scope["headers"] == [(b"x-request-id", b"shop-7"), (b"trace-bin", b"\x00\xff")]
    assert (scope["path"], scope["client"]) == ("/service/Method", ("10.0.0.7", 4711))
    assert scope["scheme"] == ("https" if secure else "http")
    assert id_metadata(scope) == (("x-request-id", "shop-7"),)


def test_a_scope_without_a_valid_id_gets_one() -> None:
    ids = {id_metadata(scope_of(Context(metadata=m), "/", False)) for m in ((), (("x-request-id", "a b"),))}
    assert len(ids) == 2
    assert (("x-request-id", "a b"),) not in ids


def test_a_deadline_is_on_the_servers_clock() -> None:
    before_s = clock()
    assert before_s + 60 <= deadline_s(Context(60)) <= clock() + 60
    assert deadline_s(Context(None)) == math.inf


@pytest.mark.parametrize(
    ("left_s", "error"),
    [(0.0, DeadlinePassed), (TRANSIT_S, DeadlinePassed), (1.0, ClientGone), (None, ClientGone)],
)
def test_a_canceled_call_has_met_its_deadline_or_lost_its_client(
    left_s: float | None, error: type[Exception]
) -> None:
    assert isinstance(end_of(Context(left_s)), error)
