"""The loads of benchmarks/peers: an answer counts only if it is right, in every form of answer."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from benchmarks.peers.load import Known, Trial
from benchmarks.peers.page import table
from benchmarks.peers.servers import peer_session
from benchmarks.peers.servers.starting import PeerFailed, ServerName

EXPECTED = np.array([[0.25, 0.5], [0.75, 0.125]])


def known(binary: bool) -> Known:
    return Known("http://127.0.0.1:1/", {}, [b"a", b"b"], EXPECTED, 1e-3, binary)


@pytest.mark.parametrize("binary", [False, True])
def test_answers_are_compared_with_those_of_their_own_request(binary: bool) -> None:
    def answer(values: list[float]) -> bytes:
        array = np.array(values, np.float32)
        return b'{"a":1}' + array.tobytes() if binary else peer_session.encode(array)

    assert known(binary).right(0, answer([0.25, 0.5005]))
    assert known(binary).right(3, answer([0.75, 0.125]))
    assert not known(binary).right(2, answer([0.75, 0.125]))
    assert not known(binary).right(0, answer([0.25, 0.502]))


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", orjson.dumps({"outputs": [{"data": [0.25]}]})])
@pytest.mark.parametrize("binary", [False, True])
def test_bodies_without_all_probabilities_are_wrong(body: bytes, binary: bool) -> None:
    assert not known(binary).right(0, body[:6] if binary else body)


def test_rates_are_held_if_the_tail_and_the_share_are() -> None:
    assert Trial(100, 10, 0.99, 0.0, 0.010, 0.0).held(0.010)
    assert not Trial(100, 10, 0.98, 0.0, 0.010, 0.0).held(0.010)
    assert not Trial(100, 10, 1.0, 0.0, 0.011, 0.0).held(0.010)
    assert not Trial(100, 10, 1.0, 0.0, 0.0, 1.0).counts


def test_servers_are_named_with_their_options() -> None:
    assert ServerName.parse("polyrec") == ServerName("polyrec", "polyrec")
    assert ServerName.parse("mosec:int8") == ServerName("mosec:int8", "mosec", "int8")
    for unknown in ("ray", "fastapi:torch", "polyrec:int8:fp32"):
        with pytest.raises(PeerFailed, match=unknown):
            ServerName.parse(unknown)


def test_table_compares_with_the_best_peer() -> None:
    figures = {"closed_requests_per_s": 1000.0, "alone_ms": 1.0}
    servers = {
        "polyrec": figures | {"knee_requests_per_s": 900.0},
        "fastapi": figures | {"knee_requests_per_s": 500.0},
        "mosec": figures | {"knee_requests_per_s": 600.0},
    }
    found = {"limit_ms": 10.0, "session_rows_per_s": 46_000.0, "servers": servers}
    lines = table("kaggle", "rows", 23, found).splitlines()
    assert "| polyrec | 1,000 | 50% | 1.00 | 900 | 1.50 |" in lines
    assert "| session alone | 2,000 | 100% |  |  |  |" in lines
