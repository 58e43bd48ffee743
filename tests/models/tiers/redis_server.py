"""A real redis-server on a free port, for tests: started, killed and started again by its process id."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.connection import Connection
from redis.exceptions import RedisError


class RedisServer:
    """One server on 127.0.0.1. Nothing is written to disk: what is killed comes back empty.

    tls: speaks TLS alone, with a certificate for 127.0.0.1 in `ca_file`.
    """

    def __init__(self, folder: Path, *options: str, tls: bool = False) -> None:
        self.binary = shutil.which("redis-server")
        if self.binary is None:
            pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
        self._folder = folder
        self.ca_file = folder / "store.crt"
        self._tls = tls
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        if tls:
            key = certify(self.ca_file)
            options += ("--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no")
            options += ("--tls-cert-file", str(self.ca_file), "--tls-key-file", str(key))
            options += ("--tls-ca-cert-file", str(self.ca_file))
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except RuntimeError:
            if tls:
                pytest.skip("this machine's redis-server does not speak TLS")
            raise

    @property
    def url(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

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
                with socket.create_connection(("127.0.0.1", self.port), 1) as client:
                    if self._tls:
                        return
                    # it replies once all of its sockets listen, also a Unix one
                    client.sendall(b"PING\r\n")
                    if client.recv(1):
                        return
            except OSError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise RuntimeError("redis-server did not start") from None

    def send(self, *words: str | bytes) -> Any:
        """Returns the reply to a command, unconverted. Raises OSError: no reply, or an error."""
        connection = Connection(port=self.port, protocol=2, socket_timeout=10.0)
        try:
            connection.connect()
            connection.send_command(*words)
            return connection.read_response()
        except RedisError as e:
            raise OSError(str(e)) from None
        finally:
            connection.disconnect()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def certify(file: Path) -> Path:
    """Writes a certificate for 127.0.0.1 that is its own authority; gives the file of its key."""
    openssl, key = shutil.which("openssl"), file.with_suffix(".key")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate (Debian: apt-get install openssl)")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    return key


class ProtectedStore:
    """A listener that refuses every connection like a Redis server in protected mode.

    Its error comes unasked. A client that has sent something meets a closed connection and loses the error,
    as sometimes happens with Redis.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._refuse, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _refuse(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    connection.settimeout(0.1)
                    try:
                        connection.recv(1)
                        # closing then resets the connection
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    except TimeoutError:
                        connection.sendall(b"-DENIED Redis is running in protected mode\r\n")
