"""Calls that a client keeps open by not reading their responses take no other client's places."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc

from polyrec.server.child import start
from polyrec.server.grpc.messages import SERVICE
from tests.server.grpc.conftest import Stub
from tests.server.grpc.test_access_log import field, frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, END_STREAM, END_HEADERS, FRAME_HEAD = 0, 1, 4, 1, 4, 9
NO_WINDOW = bytes((0, 4, 0, 0, 0, 0))
"""The setting INITIAL_WINDOW_SIZE, 0: the server may send no data."""
PLACES = 8


def call(stream: int) -> bytes:
    """A call with an empty message."""
    given = {":method": "POST", ":scheme": "http", ":path": f"/{SERVICE}/ServerLive", ":authority": "a"}
    given |= {"te": "trailers", "content-type": "application/grpc"}
    block = b"".join(field(name.encode(), value.encode()) for name, value in given.items())
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, bytes(5))


def read_responses(connection: socket.socket, most: int) -> int:
    """Reads frames until this many responses have begun; returns their number."""
    received, begun = b"", 0
    while begun < most and (more := connection.recv(65536)):
        received += more
        while len(received) >= FRAME_HEAD:
            end = FRAME_HEAD + int.from_bytes(received[:3], "big")
            if len(received) < end:
                break
            begun += received[3] == HEADERS
            received = received[end:]
    return begun


def test_calls_whose_responses_are_not_read_keep_no_other_client_out(
    bundle_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "log"
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "grpc_port": 0, "max_connections": PLACES}
    with file.open("w") as stderr, start(settings, stderr) as server:
        host, port = str(server.grpc).split(":")
        with (
            socket.create_connection((host, int(port)), 60, ("127.0.0.2", 0)) as silent,
            grpc.insecure_channel(str(server.grpc)) as channel,
        ):
            calls = b"".join(call(2 * i + 1) for i in range(2 * PLACES))
            silent.sendall(PREFACE + frame(SETTINGS, 0, 0, NO_WINDOW) + calls)
            assert read_responses(silent, 2 * PLACES) == 2 * PLACES
            assert all(Stub(channel).ask("ServerLive").live for _ in range(PLACES))
    # gRPC logged a traceback when a client left without reading
    assert all(" polyrec.server: " in line for line in file.read_text().splitlines())
