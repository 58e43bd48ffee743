"""Certificates are read for https:// alone: reading them takes longer than a call."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest

from polyrec.client.admin import AdminCalls
from polyrec.client.client import Client


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("make", [Client, lambda url: AdminCalls(url, token="a token")])
def test_certificates_are_read_for_https_alone(
    make: Callable[[str], Client | AdminCalls], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []

    def load(context: ssl.SSLContext, *args: object, **named: object) -> None:
        read.append(context)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
    with make(f"{scheme}://127.0.0.1:1"):
        pass
    assert bool(read) == (scheme == "https")
    for context in read:
        assert isinstance(context, ssl.SSLContext)
        assert context.verify_mode is ssl.CERT_REQUIRED
