"""Tests the message for an address that cannot be bound."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from polyrec.server.app.listening import PortInUse, address_of, listen, reserve, resolved


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse) as caught:
            listen("127.0.0.1", port)
    line = str(caught.value)
    assert line.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "choose another --host or --port" in line


@pytest.mark.parametrize("host", ["no.such.host.invalid", "\u00fc" * 300])
def test_a_host_that_does_not_exist_is_one_clear_line(host: str) -> None:
    with pytest.raises(PortInUse, match=f"cannot listen on {re.escape(host)}:0"):
        listen(host, 0)


def test_a_reserved_port_can_be_shared_but_not_taken() -> None:
    with reserve("127.0.0.1", 0) as reserved:
        _, port = reserved.getsockname()
        assert address_of(reserved) == resolved("127.0.0.1", port) == f"127.0.0.1:{port}"
        for take in (listen, reserve):
            with pytest.raises(PortInUse, match="Address already in use"):
                take("127.0.0.1", port)
        with socket.socket() as shared:
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind(("127.0.0.1", port))
            shared.listen()
            with socket.create_connection(("127.0.0.1", port)), pytest.raises(PortInUse, match="--grpc-port"):
                reserve("127.0.0.1", port)


def test_an_address_of_ipv6_is_in_brackets() -> None:
    assert resolved("::1", 8001) == "[::1]:8001"
