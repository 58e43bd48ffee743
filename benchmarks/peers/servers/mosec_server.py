"""Serves a peer model with mosec: an HTTP front in Rust and one worker process with the session.

    python -m benchmarks.peers.servers.mosec_server FOLDER PORT [PRECISION]

Environment variables: PEER_BATCH, the maximum requests per batch (1: no merging), and PEER_WAIT_MS, how long
a batch waits to fill.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mosec import Server, Worker
from mosec.errors import ValidationError

from benchmarks.peers.servers.peer_session import BadRequest, PeerSession, decode, encode

BATCH = int(os.environ.get("PEER_BATCH", "1"))
WAIT_MS = int(os.environ.get("PEER_WAIT_MS", "1"))


class PeerWorker(Worker):
    """Executes one request, or a batch of requests at once."""

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
        if BATCH == 1:
            return self._run(*data)
        dense, sparse = zip(*data, strict=True)
        found = self._run(np.concatenate(dense), np.concatenate(sparse))
        return np.split(found, np.cumsum([len(rows) for rows in dense[:-1]]))

    def _run(self, dense: Any, sparse: Any) -> Any:
        try:
            return self.session(dense, sparse)
        except BadRequest as e:
            raise ValidationError(str(e)) from e


if __name__ == "__main__":
    folder, port, *precision = sys.argv[1:]
    os.environ |= {"PEER_MODEL": ":".join((folder, *precision))}
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", port, "--log-level", "error"]
    server = Server()
    server.append_worker(
        PeerWorker, num=1, max_batch_size=BATCH, max_wait_time=WAIT_MS, route="/v2/models/dlrm/infer"
    )
    server.run()
