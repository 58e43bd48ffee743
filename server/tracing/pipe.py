"""The pipe to the exporter, to which the server writes records without ever blocking.

Records that do not fit are buffered up to a limit, then dropped and counted. If the exporter ends, that is
logged once, no more records are sent, and the server continues.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

log = logging.getLogger("polyrec.tracing")

PIPE_BYTES = 2**20
"""The default limit of Linux for unprivileged users (/proc/sys/fs/pipe-max-size)."""
UNSENT_BYTES = 2**20
CLOSE_S = 12.0
"""Limit for the exporter to send what it has; longer than its own (`exporter.LAST_S`)."""


class Pipe:
    """Starts the exporter and sends it records. environ: its variables. Used from one thread only."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "polyrec.server.tracing.exporter"]
        self._process = subprocess.Popen(
            command, bufsize=0, env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        assert self._process.stdin is not None
        self._fd = self._process.stdin.fileno()
        with suppress(OSError):  # a user with many open pipes gets no larger ones
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self._fd, False)
        self._unsent = bytearray()
        self.alive = True
        self.dropped = 0

    @property
    def pid(self) -> int:
        """Process id of the exporter."""
        return self._process.pid

    def send(self, record: bytes) -> None:
        """Sends a record with its length; drops it if too much is waiting."""
        if not self.alive:
            return
        if len(self._unsent) + len(record) > UNSENT_BYTES:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("the exporter of traces does not keep up: traces are dropped; sample fewer")
        else:
            self._unsent += record
        self._flush()

    def close(self) -> None:
        """Lets the exporter send what it has, in bounded time; the rest is lost."""
        stdin = self._process.stdin
        assert stdin is not None
        give_up_s = time.monotonic() + CLOSE_S
        self._flush()
        while self._unsent and self.alive and time.monotonic() < give_up_s:
            time.sleep(0.01)
            self._flush()
        self.alive = False
        stdin.close()
        try:
            self._process.wait(max(0.1, give_up_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("the exporter of traces did not end in time: the last traces are lost")
            self._process.kill()
            self._process.wait()
        if self.dropped:
            log.warning("%d traces were dropped", self.dropped)

    def _flush(self) -> None:
        try:
            written = os.write(self._fd, self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self.alive = False
            self._unsent.clear()
            log.error("the exporter of traces (process %d) ended: no more traces", self.pid)
        else:
            del self._unsent[:written]
