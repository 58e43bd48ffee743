"""A Ray actor that tracks the replicas' addresses and configures HAProxy with them.

cluster/control.py starts it, and every replica announces itself to it periodically.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from polyrec.cluster.haproxy_config import Endpoint
from polyrec.cluster.haproxy_process import HAProxy, private_folder
from polyrec.cluster.spec import ClusterError, ClusterSpec
from polyrec.models.files import write_text
from polyrec.server.app.background import repeat

log = logging.getLogger("polyrec.cluster")

BALANCER = "polyrec-balancer"
NAMESPACE = "polyrec"
SILENT_S = 20.0
"""Time without an announcement after which a replica that HAProxy finds down is dropped."""
CHECK_S = 1.0


class Balancer:
    """A detached Ray actor. HAProxy survives its restart, and the spec is read from a file then.

    folder: folder of its files.
    spec: a ClusterSpec as JSON.
    """

    def __init__(self, folder: str, spec: str) -> None:
        self._folder = private_folder(Path(folder))
        self._file = self._folder / "cluster.json"
        if not self._file.exists():
            write_text(self._file, spec)
        self._spec = ClusterSpec.model_validate_json(self._file.read_text())
        self._haproxy: HAProxy | None = None
        if self._spec.ingress == "balancer":
            self._haproxy = HAProxy(self._folder, self._spec.host, self._spec.port)
        self._endpoints: dict[str, Endpoint] = {}
        self._applied: dict[str, Endpoint] = {}
        self._states: dict[str, dict[str, Any]] = {}
        self._announced_s: dict[str, float] = {}
        self._left: set[str] = set()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Starts HAProxy without replicas unless it runs already.

        Raises ClusterError, e.g. for a taken port.
        """
        if self._haproxy is not None and not self._haproxy.alive():
            await self._haproxy.configure([])
        self._start_checking()

    async def spec(self) -> str:
        """Returns the spec in force, as JSON."""
        return self._spec.model_dump_json()

    async def set_spec(self, spec: str) -> None:
        """Replaces the spec but not the ingress and its port. Raises OSError, and keeps the old spec then."""
        new = ClusterSpec.model_validate_json(spec)
        write_text(self._file, spec)
        self._spec = new

    async def add(self, endpoint: Endpoint, state: Mapping[str, Any]) -> None:
        """Adds a replica or renews its announcement. state: shown by `polyrec cluster status`."""
        if endpoint.name in self._left:
            return
        self._start_checking()
        self._announced_s[endpoint.name] = time.monotonic()
        self._states[endpoint.name] = dict(state)
        self._endpoints[endpoint.name] = endpoint
        if self._applied.get(endpoint.name) != endpoint:
            await self._apply()

    async def remove(self, name: str) -> None:
        """Removes a replica permanently; returns once it gets no new requests."""
        self._left.add(name)
        self._announced_s.pop(name, None)
        self._states.pop(name, None)
        if self._endpoints.pop(name, None) is not None:
            await self._apply()

    async def replicas(self) -> list[dict[str, Any]]:
        """Returns each replica's name, address, state in HAProxy and announced state."""
        states = {} if self._haproxy is None else await self._haproxy.servers()
        return [
            {"name": name, "url": one.url, "state": states.get(name, "-"), **self._states.get(name, {})}
            for name, one in sorted(self._endpoints.items())
        ]

    async def close(self) -> None:
        """Stops HAProxy and deletes the spec."""
        if self._task is not None:
            self._task.cancel()
        try:
            if self._haproxy is not None:
                await self._haproxy.stop()
        finally:
            self._file.unlink(missing_ok=True)

    async def _apply(self) -> None:
        async with self._lock:
            wanted = dict(self._endpoints)
            if self._haproxy is not None:
                if wanted == self._applied and self._haproxy.alive():
                    return  # another call applied the change meanwhile
                await self._haproxy.configure(wanted.values())
            self._applied = wanted

    def _start_checking(self) -> None:
        """Starts `_check`; needed in `add` too, since Ray restarts this actor without calling `open`."""
        if self._task is None:
            self._task = repeat(self._check, CHECK_S, "the check of replicas")

    async def _check(self) -> None:
        """Restarts HAProxy if it ended, drops lost replicas, and retries failed changes."""
        now_s = time.monotonic()
        states: Mapping[str, str] | None = None
        if self._haproxy is not None:
            # query only if a replica is silent, as every query is a connection that HAProxy serves
            is_silent = any(now_s - at_s > SILENT_S for at_s in self._announced_s.values())
            states = await self._haproxy.servers() if is_silent else {}
        for name in lost(self._announced_s, states, self._applied, now_s):
            self._endpoints.pop(name, None)
            self._states.pop(name, None)
            del self._announced_s[name]
        ended = self._haproxy is not None and not self._haproxy.alive()
        if ended or self._applied != self._endpoints:
            try:
                await self._apply()
            except (ClusterError, OSError) as e:
                log.error("HAProxy is not configured: %s", e)  # retried at the next check


def lost(
    announced_s: Mapping[str, float],
    states: Mapping[str, str] | None,
    applied: Collection[str],
    now_s: float,
) -> list[str]:
    """Returns the replicas that are silent and also down or not configured in HAProxy.

    Silence alone does not count: if the machine was too busy for announcements or was suspended, all replicas
    are silent, and dropping them would reject every request.

    announced_s: time of each replica's last announcement.
    states: states in HAProxy, None if it does not run.
    applied: names in HAProxy's configuration. A replica that HAProxy refuses to configure must be dropped, or
        it would keep all others out.
    """
    silent = [name for name, at_s in announced_s.items() if now_s - at_s > SILENT_S]
    if states is None:
        return silent
    return [name for name in silent if name not in applied or states.get(name, "").startswith("DOWN")]
