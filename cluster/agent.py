"""Answers HAProxy's agent checks with the percentage of its weight that a replica should get now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp

from polyrec.cluster.live_state import LiveState, read_state
from polyrec.server.app.background import repeat

READ_INTERVAL_S = 0.5
"""Interval at which the server's metrics are read, equal to HAProxy's agent-inter."""


class Agent:
    """Reads a server's metrics periodically, and answers HAProxy on a separate port.

    url: the server's URL.
    on_read: called after each reading.
    """

    def __init__(self, url: str, on_read: Callable[[], None] = lambda: None) -> None:
        self._url = url
        self._on_read = on_read
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self.state = LiveState()
        self.read_s = 0.0
        self.nominal_rows_s = 0.0
        self.draining = False

    async def start(self, host: str) -> int:
        """Reads the metrics once, starts to listen, and returns the port."""
        await self.measure()
        self._server = await asyncio.start_server(self._answer, host, 0)
        self._tasks.append(repeat(self._read_again, READ_INTERVAL_S, "reading a server's metrics"))
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def measure(self) -> None:
        """Reads the nominal capacity, of a server that has just opened its plan.

        Raises aiohttp.ClientError, TimeoutError or OSError.
        """
        await self._read()
        self.nominal_rows_s = self.state.capacity_rows_s

    def stop(self) -> None:
        """Closes the port."""
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()

    def agent_line(self) -> str:
        """Returns the one-line answer to HAProxy."""
        return "drain\n" if self.draining else f"ready up {self.state.percent()}%\n"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.agent_line().encode())
        writer.close()

    async def _read_again(self) -> None:
        try:
            await self._read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return  # read_s shows users of the state that it is old
        self._on_read()

    async def _read(self) -> None:
        timeout = aiohttp.ClientTimeout(total=2)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.get(f"{self._url}/metrics") as got,
        ):
            self.state, self.read_s = read_state(await got.text()), time.time()
