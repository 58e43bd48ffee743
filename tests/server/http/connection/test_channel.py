"""The transport side of a connection: buffered bytes, paused reading, closing."""

from __future__ import annotations

import asyncio
from typing import Any

from polyrec.server.app.engine import Engine
from polyrec.server.http.app import create_app
from polyrec.server.http.connection.channel import Channel
from polyrec.server.http.connection.frontend import HttpFrontend


class RecordingTransport(asyncio.Transport):
    """A transport that records the calls of its methods."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(extra)
        self.calls: list[str] = []

    def write(self, data: Any) -> None:
        self.calls.append(f"write {bytes(data)!r}")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def close(self) -> None:
        self.calls.append("close")


def frontend() -> HttpFrontend:
    app = create_app(Engine())
    return HttpFrontend(app, app.hot, app.engine)


def test_held_bytes_are_summed_over_connections_and_released() -> None:
    shared = frontend()
    one, other = Channel(RecordingTransport(), shared), Channel(RecordingTransport(), shared)
    one.hold(100)
    other.hold(20)
    one.hold(50)
    assert shared.buffered == 70
    one.lost()
    assert shared.buffered == 20


def test_reading_is_paused_and_resumed_once_and_not_paused_after_the_close() -> None:
    transport = RecordingTransport()
    channel = Channel(transport, frontend())
    channel.resume_reading()
    for _ in range(2):
        channel.pause_reading()
    for _ in range(2):
        channel.resume_reading()
    channel.close()
    channel.pause_reading()
    assert transport.calls == ["pause", "resume", "close"]


def test_addresses_and_scheme_come_from_the_transport() -> None:
    tls = RecordingTransport(peername=("10.0.0.1", 5), sockname=("10.0.0.2", 8000), sslcontext=object())
    channel = Channel(tls, frontend())
    assert (channel.client, channel.server, channel.scheme) == (("10.0.0.1", 5), ("10.0.0.2", 8000), "https")
    assert channel.name == "10.0.0.1:5"
    unix = Channel(RecordingTransport(peername="", sockname="/run/socket"), frontend())
    assert (unix.client, unix.server, unix.scheme, unix.name) == (None, None, "http", "a client")
