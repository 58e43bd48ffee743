"""Sends records from the server to a helper process through a pipe, without ever blocking.

The prediction log, live quality and tracing use it. Records that do not fit in the pipe are buffered up to a
limit, then dropped and counted. If the process ends, that is logged once, further records are dropped, and
the server continues.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

PIPE_BYTES = 2**20
"""The default limit of Linux for unprivileged users (/proc/sys/fs/pipe-max-size)."""
UNSENT_BYTES = 2**20
CLOSE_S = 12.0
"""Time that a process has to finish; longer than the process's own limit."""
LENGTH_BYTES = 4
"""Bytes of the big-endian length before each record."""


def framed(record: bytes) -> bytes:
    """Returns a record with its length prepended."""
    return len(record).to_bytes(LENGTH_BYTES, "big") + record


def unframe(buffer: bytearray) -> list[bytes]:
    """Removes the complete records from a buffer and returns them without their lengths.

    Returns a list, since with a generator a caller that stops early would leave records in the buffer.
    """
    records: list[bytes] = []
    first = 0
    while len(buffer) - first >= LENGTH_BYTES:
        start = first + LENGTH_BYTES
        end = start + int.from_bytes(buffer[first:start], "big")
        if len(buffer) < end:
            break
        records.append(bytes(buffer[start:end]))
        first = end
    del buffer[:first]
    return records


def close_pipes(pipes: Sequence[RecordPipe]) -> None:
    """Lets all processes finish concurrently, within CLOSE_S in total."""
    give_up_s = time.monotonic() + CLOSE_S
    for pipe in pipes:
        pipe.end(give_up_s)
    for pipe in pipes:
        pipe.wait(give_up_s)


class RecordPipe:
    """Starts a Python module as a process and sends it records on its standard input.

    Use it from one thread only.

    name, records: names of the process and of its records in messages of `log`.
    environ, arguments: environment of the process, and arguments of the module.
    inherited: file descriptors that it inherits.
    unsent_bytes: maximum bytes to buffer while the process does not read.
    """

    def __init__(
        self,
        module: str,
        name: str,
        records: str,
        log: logging.Logger,
        environ: Mapping[str, str],
        arguments: Sequence[str] = (),
        inherited: Sequence[int] = (),
        unsent_bytes: int = UNSENT_BYTES,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            bufsize=0,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=inherited,
        )
        assert self._process.stdin is not None
        self._fd = self._process.stdin.fileno()
        with suppress(OSError):  # a user with many open pipes may not enlarge them
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self._fd, False)
        self._log = log
        self._name = name
        self._records = records
        self._unsent_bytes = unsent_bytes
        self._unsent = bytearray()
        self._waiting: asyncio.AbstractEventLoop | None = None
        self.alive = True
        self.dropped = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, record: bytes) -> bool:
        """Sends a record; returns False if it was dropped, as the buffer is full or the process ended."""
        if not self.alive:
            self.dropped += 1
            return False
        if len(self._unsent) + len(record) > self._unsent_bytes:
            self.dropped += 1
            if self.dropped == 1:
                self._log.warning(
                    "the %s does not keep up: %s are dropped; sample fewer", self._name, self._records
                )
            self._flush()
            return False
        self._unsent += record
        self._flush()
        return True

    def end(self, give_up_s: float) -> None:
        """Sends buffered records and closes the process's input, by give_up_s on time.monotonic."""
        stdin = self._process.stdin
        assert stdin is not None
        self._flush()
        while self._unsent and self.alive and time.monotonic() < give_up_s:
            time.sleep(0.01)
            self._flush()
        self._flush_when_writable(None)
        self.alive = False
        stdin.close()

    def wait(self, give_up_s: float) -> None:
        """Waits for the process after `end` until give_up_s on time.monotonic, then kills it."""
        try:
            self._process.wait(max(0.1, give_up_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._log.warning("the %s did not end in time: the last %s are lost", self._name, self._records)
            self._process.kill()
            self._process.wait()
        if self.dropped:
            self._log.warning("%d %s were dropped", self.dropped, self._records)

    def kill(self) -> None:
        """Kills the process; records that it has not handled are lost."""
        self.alive = False
        self._flush_when_writable(None)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _flush(self) -> None:
        written = 0
        try:
            if self._unsent:
                written = os.write(self._fd, self._unsent)
        except BlockingIOError:
            pass
        except OSError:
            self.alive = False
            self._unsent.clear()
            self._log.error("the %s (process %d) ended: no more %s", self._name, self.pid, self._records)
        del self._unsent[:written]
        if not self._unsent:
            self._flush_when_writable(None)
        elif self._waiting is None:
            # flush the buffer when the process reads, even if no further record comes
            with suppress(RuntimeError):
                self._flush_when_writable(asyncio.get_running_loop())

    def _flush_when_writable(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Makes `loop` flush whenever the pipe is writable; None stops that."""
        if self._waiting is not None and not self._waiting.is_closed():
            self._waiting.remove_writer(self._fd)
        self._waiting = loop
        if loop is not None:
            loop.add_writer(self._fd, self._flush)
