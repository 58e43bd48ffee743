"""A real redis-server on a free port, for tests: started, killed and started again by its process id."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest


class RedisServer:
    """One server on 127.0.0.1. Nothing is written to disk: what is killed comes back empty."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.binary = shutil.which("redis-server")
        if self.binary is None:
            pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
        self._folder = folder
        self.options = options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert self.binary is not None
        self._process = subprocess.Popen(
            [
                *(self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
                *("--appendonly", "no", "--dir", str(self._folder), *self.options),
            ],
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    return
            except OSError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise RuntimeError("redis-server did not start") from None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
