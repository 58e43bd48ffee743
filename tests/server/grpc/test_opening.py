"""The gRPC port before it starts, and where gRPC is not installed."""

from __future__ import annotations

import asyncio

import pytest

from polyrec.server.app.settings.settings import Settings, SettingsError
from polyrec.server.grpc import opening


@pytest.mark.parametrize("missing", ["no_such_package", "no_such_package.module"])
def test_missing_packages_are_named_with_their_remedy(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    opening.require_packages()
    monkeypatch.setattr(opening, "PACKAGES", (*opening.PACKAGES, missing))
    with pytest.raises(SettingsError, match=r"pip install 'polyrec\[grpc\]'"):
        opening.require_packages()


def test_a_port_that_was_never_started_stops() -> None:
    settings = Settings.model_validate({"bundle": "b", "grpc_port": 0})

    async def run() -> str:
        port = opening.GrpcPort(settings, "127.0.0.1:1")
        port.reload_key()
        port.begin_stop()
        await port.stopped()
        return port.address

    assert asyncio.run(run()) == "127.0.0.1:1"
