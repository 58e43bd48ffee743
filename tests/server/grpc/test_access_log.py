"""Every kind of call has its line in the access log, without metadata or messages."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from polyrec.server.grpc.health import HEALTH
from polyrec.server.grpc.messages import SERVICE
from tests.forking import start
from tests.server.grpc.conftest import Stub, infer_request

METADATA = (("x-request-id", "shop-7"), ("authorization", "Bearer secret"))


def lines(file: Path) -> list[dict[str, Any]]:
    found = map(json.loads, file.read_text().splitlines())
    return [line for line in found if line["logger"] == "polyrec.requests"]


def test_every_kind_of_call_has_its_line(
    bundle_dir: Path,
    tmp_path: Path,
    request_: Any,
    tensors: Callable[[Any], dict[str, Any]],
    refused: Callable[..., Any],
) -> None:
    file = tmp_path / "log"
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "access_log": 1, "log_format": "json"}
    settings |= {"grpc_port": 0, "default_budget_ms": 60_000}
    request = infer_request(tensors(request_))
    expected = []
    with (
        file.open("w") as stderr,
        start(settings, stderr) as server,
        grpc.insecure_channel(str(server.grpc)) as channel,
    ):
        stub = Stub(channel)

        def ended(method: str, status: str, service: str = SERVICE) -> None:
            """Waits until the line of a call is written."""
            expected.append((f"/{service}/{method}", status))
            give_up_s = time.monotonic() + 60
            while len(lines(file)) < len(expected):
                assert time.monotonic() < give_up_s
                time.sleep(0.01)

        stub.infer(request, metadata=METADATA)
        ended("ModelInfer", "OK")
        refused(stub.infer, infer_request({}), metadata=METADATA)
        ended("ModelInfer", "INVALID_ARGUMENT")
        assert len(list(stub.method("ModelStreamInfer")(iter([request] * 3), metadata=METADATA))) == 3
        ended("ModelStreamInfer", "OK")
        stub.ask("ServerLive", metadata=METADATA)
        ended("ServerLive", "OK")
        refused(stub.ask, "ModelConfig", name="other", metadata=METADATA)
        ended("ModelConfig", "NOT_FOUND")
        watch = channel.unary_stream(f"/{HEALTH}/Watch")(b"", metadata=METADATA)
        next(watch)
        watch.cancel()
        ended("Watch", "CANCELLED", HEALTH)
    found = lines(file)
    assert [(line["route"], line["grpc_status"]) for line in found] == expected
    assert {(line["method"], line["status"], line["request_id"]) for line in found} == {
        ("POST", 200, "shop-7")
    }
    assert [line["path"] is not None for line in found] == [True, False, False, False, False, False]
    assert all(line["ms"] > 0 for line in found)
    assert "secret" not in file.read_text()


def test_a_line_of_a_call_without_a_valid_id_has_the_one_of_its_answer(
    bundle_dir: Path, tmp_path: Path, request_: Any, tensors: Callable[[Any], dict[str, Any]]
) -> None:
    file = tmp_path / "log"
    settings = {
        "bundle": bundle_dir,
        "drain_grace_s": 0,
        "access_log": 1,
        "log_format": "json",
        "grpc_port": 0,
    }
    sent = []
    with (
        file.open("w") as stderr,
        start(settings | {"default_budget_ms": 60_000}, stderr) as server,
        grpc.insecure_channel(str(server.grpc)) as channel,
    ):
        infer = Stub(channel).method("ModelInfer")
        for metadata in ((), (("x-request-id", "a b"),)):
            _, call = infer.with_call(infer_request(tensors(request_)), metadata=metadata, timeout=60)
            sent.append(dict(call.trailing_metadata())["x-request-id"])
    assert [line["request_id"] for line in lines(file)] == sent
    assert not {"", "a b"} & set(sent)


def field(name: bytes, value: bytes) -> bytes:
    """A header of HTTP/2 as a literal (RFC 7541, section 6.2.2), of less than 127 bytes each."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def test_metadata_that_is_not_utf_8_is_in_no_line(bundle_dir: Path, tmp_path: Path) -> None:
    """gRPC logged it with a traceback, and so any client could fill the log, and a token be in it."""
    file = tmp_path / "log"
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "grpc_port": 0}
    head = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/ServerLive".encode()),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"authorization", b"Bearer secret\xff"),
    )
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    sent += frame(1, 4, 1, b"".join(field(*each) for each in head)) + frame(0, 1, 1, bytes(5))
    with file.open("w") as stderr, start(settings, stderr) as server:
        host, port = str(server.grpc).split(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(sent)
            received = b""
            while b"grpc-status" not in received:
                more = client.recv(65536)
                assert more
                received += more
    assert all(" polyrec.server: " in line for line in file.read_text().splitlines())  # of its end
