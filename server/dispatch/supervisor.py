"""Restarts lanes whose process ended, with exponential backoff."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from polyrec.server.lanes.lane import Lane

log = logging.getLogger("polyrec.dispatcher")

FIRST_RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.05, 5.0


class LaneSupervisor:
    """Restarts the lanes of one dispatcher.

    on_restarted: called with a lane's index once it is alive again.
    """

    def __init__(self, lanes: Sequence[Lane], on_restarted: Callable[[int], None]) -> None:
        self._lanes = lanes
        self._on_restarted = on_restarted
        self._restarts: set[asyncio.Task[None]] = set()

    def restart(self, lane: int) -> None:
        """Restarts a lane in the background; retries until it succeeds or the supervisor is closed."""
        task = asyncio.get_running_loop().create_task(self._restart(lane))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    def close(self) -> None:
        """Cancels the restarts in progress."""
        for task in self._restarts:
            task.cancel()

    async def _restart(self, lane: int) -> None:
        delay_s = FIRST_RESTART_DELAY_S
        while True:
            try:
                await self._lanes[lane].restart()
            except Exception as e:
                log.error("lane %s does not start: %s; again in %g s", self._lanes[lane].name, e, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_RESTART_DELAY_S)
            else:
                log.warning("lane %s is back", self._lanes[lane].name)
                self._on_restarted(lane)
                return
