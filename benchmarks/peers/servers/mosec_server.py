"""Serves a peer model with mosec: an HTTP front in Rust and one worker process with the session.

python -m benchmarks.peers.servers.mosec_server FOLDER PORT [PRECISION]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from mosec import Server, Worker
from mosec.errors import ValidationError

from benchmarks.peers.servers.peer_session import BadRequest, PeerSession, decode, encode


class PeerWorker(Worker):  # type: ignore[misc]
    """Executes one request at a time."""

    def __init__(self) -> None:
        folder, *precision = os.environ["PEER_MODEL"].split(":")
        self.session = PeerSession(Path(folder), *precision)

    def deserialize(self, data: bytes) -> Any:
        try:
            return decode(data)
        except BadRequest as e:
            raise ValidationError(str(e)) from e

    def serialize(self, data: Any) -> bytes:
        return encode(data)

    def forward(self, data: Any) -> Any:
        try:
            return self.session(*data)
        except BadRequest as e:
            raise ValidationError(str(e)) from e


if __name__ == "__main__":
    folder, port, *precision = sys.argv[1:]
    os.environ |= {"PEER_MODEL": ":".join((folder, *precision))}
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", port, "--log-level", "error"]
    server = Server()
    server.append_worker(PeerWorker, num=1, route="/v2/models/dlrm/infer")
    server.run()
