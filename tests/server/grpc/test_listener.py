"""The gRPC port of real servers: its life beside HTTP's, encryption, tokens, limits, several processes."""

from __future__ import annotations

import select
import shutil
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import orjson
import pytest

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.server.app.listening import address_of, reserve
from polyrec.server.child import ServerProcess, StartFailed
from polyrec.server.grpc.messages import SERVICE, message_class
from tests.forking import start
from tests.server.app.test_tls import certified
from tests.server.grpc.conftest import Stub, infer_request, probabilities
from tests.server.grpc.test_access_log import field, frame

Tensors = Callable[[Any], dict[str, Any]]
Code = grpc.StatusCode
TOKEN, SLOW = "ranking-token-0123456789", "slow-token-0123456789"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_STREAM, END_HEADERS, FRAME_HEAD = 1, 1, 4, 9
WINDOW, LONGEST_FRAME = 65_535, 16_384
"""Bytes that may be sent, altogether and in a frame, before the first setting or update."""
NO_WINDOW = bytes((0, 4, 0, 0, 0, 0))
"""The setting INITIAL_WINDOW_SIZE, 0: the server may send no data."""
PLACES = 8


def test_without_the_setting_there_is_no_grpc(server: ServerProcess) -> None:
    assert server.grpc is None


def test_a_port_in_use_is_one_line(bundle_dir: Path, tmp_path: Path) -> None:
    with reserve("127.0.0.1", 0) as taken, (tmp_path / "log").open("w") as log:
        port = taken.getsockname()[1]
        with pytest.raises(StartFailed):
            start({"bundle": bundle_dir, "grpc_port": port}, stderr=log)
        assert (tmp_path / "log").read_text() == (
            f"polyrec: error: cannot listen on {address_of(taken)}: Address already in use; "
            "choose another --host or --grpc-port (0 takes a free one)\n"
        )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_calls_are_encrypted_and_the_certificate_is_read_again_on_sighup(
    bundle_dir: Path, tmp_path: Path
) -> None:
    cert, key = certified(tmp_path, "first")
    second_cert, second_key = certified(tmp_path, "second")
    trusted = grpc.ssl_channel_credentials(cert.read_bytes() + second_cert.read_bytes())
    only_second = grpc.ssl_channel_credentials(second_cert.read_bytes())
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "tls_cert": cert, "tls_key": key, "grpc_port": 0}
    with start(settings) as server:
        address = str(server.grpc)

        def live(credentials: Any) -> Any:
            with grpc.secure_channel(address, credentials) as channel:
                return Stub(channel).ask("ServerLive").live

        assert live(trusted)
        with pytest.raises(grpc.RpcError), grpc.insecure_channel(address) as channel:
            Stub(channel).ask("ServerLive")
        with pytest.raises(grpc.RpcError):
            live(only_second)
        shutil.copy(second_cert, cert)
        shutil.copy(second_key, key)
        server.process.send_signal(signal.SIGHUP)
        shown = False
        while not shown:
            with suppress(grpc.RpcError):
                shown = live(only_second)


@pytest.fixture
def guarded(bundle_dir: Path, tmp_path: Path) -> Iterator[Stub]:
    """A server with tokens."""
    clients = [
        {"name": "ranking", "token": TOKEN, "rights": ["priority"]},
        {"name": "slow", "token": SLOW, "requests_per_second": 1e-3},
    ]
    (tmp_path / "tokens.json").write_bytes(orjson.dumps({"clients": clients}))
    settings = {"bundle": bundle_dir, "tokens": tmp_path / "tokens.json", "drain_grace_s": 0, "grpc_port": 0}
    with start(settings) as server, grpc.insecure_channel(str(server.grpc)) as channel:
        yield Stub(channel)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def test_tokens_rights_and_rates_are_those_of_http(
    guarded: Stub, request_: Any, tensors: Tensors, refused: Callable[..., Any]
) -> None:
    request = infer_request(tensors(request_))
    error = refused(guarded.infer, request)
    assert (error.code(), error.details()) == (
        Code.UNAUTHENTICATED,
        "send a token as 'Authorization: Bearer TOKEN'",
    )
    wrong = refused(guarded.infer, request, metadata=bearer("wrong-token-0123456789"))
    assert wrong.code() is Code.UNAUTHENTICATED
    assert probabilities(guarded.infer(request, metadata=bearer(TOKEN))).size
    quality = (*bearer(TOKEN), ("x-polyrec-quality", "required"))
    assert refused(guarded.infer, request, metadata=quality).code() is Code.PERMISSION_DENIED
    priority = (*bearer(TOKEN), ("x-polyrec-priority", "1"))
    assert probabilities(guarded.infer(request, metadata=priority)).size
    guarded.infer(request, metadata=bearer(SLOW))
    limited = refused(guarded.infer, request, metadata=bearer(SLOW))
    assert limited.code() is Code.RESOURCE_EXHAUSTED
    assert 0 < int(dict(limited.trailing_metadata())["retry-after"]) <= 1000
    assert guarded.ask("ServerReady").ready
    stream = guarded.method("ModelStreamInfer")(iter([request]))
    assert stream.code() is Code.UNAUTHENTICATED
    assert next(guarded.method("ModelStreamInfer")(iter([request]), metadata=bearer(TOKEN)))


def test_a_message_beyond_the_limit_of_bodies_is_refused(
    stub: Stub, request_: Any, tensors: Tensors, refused: Callable[..., Any]
) -> None:
    call = stub.channel.unary_unary(f"/{SERVICE}/ModelInfer")
    error = refused(call, bytes(2**20 + 1), timeout=30)
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert "larger than max (1048577 vs. 1048576)" in error.details()
    assert stub.ask("ServerReady").ready


def test_a_server_that_reads_all_it_may_refuses_the_call_that_has_waited_longest(bundle_dir: Path) -> None:
    limits = {"max_body_bytes": 2**20, "max_buffered_bytes": 2**20, "body_timeout_s": 600}
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "grpc_port": 0}
    with start(settings | limits) as server, grpc.insecure_channel(str(server.grpc)) as channel:
        stub = Stub(channel)
        stopped = threading.Event()

        def silent() -> Iterator[bytes]:
            stopped.wait()
            yield from ()

        infer = channel.stream_unary(f"/{SERVICE}/ModelInfer")
        held = [infer.future(silent()) for _ in range(16)]
        while not any(call.done() for call in held):
            assert stub.ask("ServerLive").live
        samples = MetricSamples(httpx.get(f"{server.url}/metrics").text)
        assert samples.total("polyrec_limited_total", limit="grpc_reading") >= 1
        stopped.set()
        codes = [call.code() for call in held]
        assert set(codes) == {Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT}
        refused = held[codes.index(Code.RESOURCE_EXHAUSTED)]
        assert "more than 16 calls are sending" in refused.details()


def test_a_message_that_does_not_arrive_is_not_waited_for(bundle_dir: Path) -> None:
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "grpc_port": 0, "body_timeout_s": 0.1}
    with start(settings) as server, grpc.insecure_channel(str(server.grpc)) as channel:
        stopped = threading.Event()

        def silent() -> Iterator[bytes]:
            stopped.wait()
            yield from ()

        call = channel.stream_unary(f"/{SERVICE}/ModelInfer").future(silent())
        assert call.code() is Code.DEADLINE_EXCEEDED
        assert call.details() == "the message did not arrive in 0.1 s"
        stopped.set()


@pytest.mark.long
def test_several_processes_share_the_port_and_one_that_dies_is_replaced(bundle_dir: Path) -> None:
    settings = {"bundle": bundle_dir, "grpc_port": 0, "processes": 2, "drain_grace_s": 0}
    with start(settings) as server:

        def asked(url: str) -> float:
            return MetricSamples(httpx.get(f"{url}/metrics").text).total(
                "polyrec_requests_total", endpoint="infer"
            )

        def all_asked() -> None:
            """Asks until each process has been asked; the kernel gives each connection to one of them."""
            before = [asked(url) for url in server.processes]
            while any(asked(url) == b for url, b in zip(server.processes, before, strict=True)):
                own = [("grpc.use_local_subchannel_pool", 1)]
                with (
                    pytest.raises(grpc.RpcError),
                    grpc.insecure_channel(str(server.grpc), own) as channel,
                ):
                    Stub(channel).infer(infer_request({}))

        all_asked()


def test_statistics_of_one_of_several_processes_are_refused(
    bundle_dir: Path, refused: Callable[..., Any]
) -> None:
    settings = {"bundle": bundle_dir, "grpc_port": 0, "processes": 2, "drain_grace_s": 0}
    with start(settings) as server, grpc.insecure_channel(str(server.grpc)) as channel:
        error = refused(Stub(channel).ask, "ModelStatistics", name="dlrm")
        assert error.code() is Code.FAILED_PRECONDITION
        assert "ask each for its statistics at its own HTTP port" in error.details()


def test_the_image_checks_health_beside_a_grpc_port(grpc_server: ServerProcess) -> None:
    from polyrec.server.app.healthcheck import main

    assert main([str(grpc_server.process.pid)]) == 0


def test_an_http_request_to_the_grpc_port_is_no_harm(grpc_server: ServerProcess, stub: Stub) -> None:
    host, _, port = str(grpc_server.grpc).rpartition(":")
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        while plain.recv(4096):
            pass
    assert stub.ask("ServerReady").ready


def head(stream: int, method: str) -> bytes:
    """The beginning of a call."""
    given = {":method": "POST", ":scheme": "http", ":path": f"/{SERVICE}/{method}", ":authority": "a"}
    given |= {"te": "trailers", "content-type": "application/grpc"}
    block = b"".join(field(name.encode(), value.encode()) for name, value in given.items())
    return frame(HEADERS, END_HEADERS, stream, block)


def call(stream: int) -> bytes:
    """A call with an empty message."""
    return head(stream, "ServerLive") + frame(DATA, END_STREAM, stream, bytes(5))


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


class Sender:
    """Sends one stream as many bytes as the server's windows allow, and reads no response."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self._initial = WINDOW
        self._window = {0: WINDOW, 1: WINDOW}
        self.sent = 0
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, NO_WINDOW) + head(1, "ModelStreamInfer"))

    def send(self, message: bytes) -> None:
        """Sends messages until a window is used up."""
        while room := max(0, min(self._window.values())):
            at = self.sent % len(message)
            part = message[at : at + min(room, LONGEST_FRAME)]
            self._connection.sendall(frame(DATA, 0, 1, part))
            self.sent += len(part)
            for stream in self._window:
                self._window[stream] -= len(part)

    def receive(self) -> None:
        """Reads what has come, or comes soon."""
        if not select.select([self._connection], [], [], 0.01)[0]:
            return
        more = self._connection.recv(65536)
        assert more, "the server closed the connection"
        self._received += more
        while len(self._received) >= FRAME_HEAD:
            end = FRAME_HEAD + int.from_bytes(self._received[:3], "big")
            if len(self._received) < end:
                return
            kind, flags, stream = (
                self._received[3],
                self._received[4],
                int.from_bytes(self._received[5:9], "big"),
            )
            self._note(kind, flags & ACK, stream, self._received[FRAME_HEAD:end])
            self._received = self._received[end:]

    def _note(self, kind: int, is_ack: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._window[stream] += int.from_bytes(payload, "big")
        elif kind in (SETTINGS, PING) and not is_ack:
            self._connection.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            for at in range(0, len(payload) if kind == SETTINGS else 0, 6):
                if payload[at : at + 2] == NO_WINDOW[:2]:
                    initial = int.from_bytes(payload[at + 2 : at + 6], "big")
                    self._window[1] += initial - self._initial
                    self._initial = initial


def test_of_a_stream_that_is_not_read_no_more_is_buffered_than_its_messages_and_a_window(
    bundle_dir: Path,
) -> None:
    most = 2**16
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "grpc_port": 0, "write_timeout_s": 1}
    with start(settings | {"max_body_bytes": most}) as server, httpx.Client(base_url=server.url) as client:
        host, port = str(server.grpc).split(":")
        with socket.create_connection((host, int(port))) as connection:
            # answered by an error with its id, so that the second answer no longer fits gRPC's own buffer
            request = message_class("ModelInferRequest")(id="x" * 50_000).SerializeToString()
            sender, message = Sender(connection), struct.pack(">BI", 0, len(request)) + request
            given_up = 0.0
            while not given_up:
                sender.send(message)
                sender.receive()
                given_up = MetricSamples(client.get("/metrics").text).total(
                    "polyrec_limited_total", limit="grpc_write"
                )
            assert most < sender.sent < 8 * most
