"""A Ray Serve replica that starts an ordinary server in a child process and supervises it.

Ray Serve places, restarts, scales and stops replicas. A roll-out changes `user_config`, which Serve passes to
one replica after the other. Each reloads its server, so no capacity is lost. If the server ends by itself,
the replica ends too, and Serve starts another one. Clients connect directly to the server's port; `__call__`
only forwards requests that come through Serve's own proxies.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import aiohttp
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from yarl import URL

from polyrec.cluster.agent import Agent
from polyrec.cluster.balancer import BALANCER, NAMESPACE
from polyrec.cluster.haproxy_config import Endpoint
from polyrec.cluster.spec import ClusterError
from polyrec.cluster.targets import REFUSAL, is_administration, target_of
from polyrec.server.app.background import start_task
from polyrec.server.child import ServerProcess, start

ANNOUNCE_S = 1.0
WATCH_S = 0.05
RELOAD_S = 600.0
NO_BALANCER = (ray.exceptions.RayError, ValueError)
"""Errors raised while the balancer restarts and after `cluster down`."""
HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class Replica:
    """A server and its agent. settings: the server's settings except for the plan."""

    def __init__(self, group: str, settings: Mapping[str, str]) -> None:
        self._name = f"{group}-{serve.get_replica_context().replica_id.unique_id}"
        self._settings: dict[str, object] = {"admin_token": secrets.token_hex(16), **settings}
        self._served: Mapping[str, Any] = {}
        self._server: ServerProcess | None = None
        self._agent: Agent | None = None
        self._endpoint: Endpoint | None = None
        self._client: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def reconfigure(self, served: Mapping[str, Any]) -> None:
        """Starts the server with a plan, or reloads it if it runs already. Raises ClusterError."""
        if served == self._served:
            return
        if self._server is None:
            await self._open(str(served["plan"]))
        else:
            await self._reload(str(served["plan"]))
        self._served = dict(served)

    async def check_health(self) -> None:
        """Raises ClusterError once the server has ended."""
        if self._server is not None and self._server.process.poll() is not None:
            raise ClusterError(f"the server of {self._name} has ended")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the figures that cluster/scaling.py uses."""
        return {} if self._agent is None else asdict(self._agent.state.load())

    def record_routing_stats(self) -> dict[str, float]:
        """Returns the figures that cluster/request_router.py uses."""
        if self._agent is None:
            return {}
        state = self._agent.state
        return {
            "reported_s": self._agent.read_s,
            "wait_s": state.backlog_s,
            "service_s": state.work_s * state.lanes,
            "work_s": state.work_s,
            "weight": max(state.capacity_rows_s, 1.0),
        }

    async def __call__(self, request: Request) -> Response:
        """Forwards a request from Serve's proxies to the server."""
        assert self._client is not None
        assert self._endpoint is not None
        headers = [(k, v) for k, v in request.headers.items() if k not in HOP_BY_HOP]
        if is_administration(request.scope["path"]):
            return JSONResponse({"error": REFUSAL}, 403)
        url = URL(self._endpoint.url + target_of(request.scope), encoded=True)
        body = await request.body()
        async with self._client.request(request.method, url, data=body, headers=headers) as got:
            kept = {k: v for k, v in got.headers.items() if k.lower() not in HOP_BY_HOP}
            return Response(await got.read(), got.status, kept)

    async def __del__(self) -> None:
        """Leaves the balancer, then drains the server. Serve calls and awaits this to stop a replica."""
        if self._stopping:
            return
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._agent is not None:
            self._agent.draining = True
        await self._leave()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        if self._agent is not None:
            self._agent.stop()
        if self._client is not None:
            await self._client.close()

    async def _open(self, plan: str) -> None:
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        settings = {"host": host, "port": 0, "plan": plan, **self._settings}
        server = await asyncio.to_thread(start, settings, lifeline=True)
        self._server = server
        self._agent = Agent(server.url)
        agent_port = await self._agent.start(host)
        port = int(server.url.rpartition(":")[2])
        self._endpoint = Endpoint(self._name, host, port, agent_port, self._agent.nominal_rows_s)
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, skip_auto_headers={"Content-Type"}
        )
        self._tasks = [
            start_task(self._watch(), "the watch over a server"),
            start_task(self._announce(), "announcing a replica"),
        ]

    async def _reload(self, plan: str) -> None:
        assert self._client is not None
        assert self._endpoint is not None
        assert self._agent is not None
        url = f"{self._endpoint.url}/v1/admin/reload"
        headers = {"Authorization": f"Bearer {self._settings['admin_token']}"}
        timeout = aiohttp.ClientTimeout(total=RELOAD_S)
        async with self._client.post(url, json={"plan": plan}, headers=headers, timeout=timeout) as got:
            if got.status != 200:
                raise ClusterError(f"{self._name} did not open '{plan}': {await got.text()}")
        # the balancer weighs replicas by the capacity of their plans; announced with the next announcement
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            await self._agent.measure()
            self._endpoint = replace(self._endpoint, rows_s=self._agent.nominal_rows_s)

    async def _watch(self) -> None:
        """Ends this process once the server or Ray's node has ended, as Serve starts another replica.

        Ray itself ends the actors of a node that was killed, but not where nothing reaps the dead raylet, as
        in a container without an init. Such a replica would serve on, and get no further plan.
        """
        assert self._server is not None
        raylet = os.getppid()
        while self._server.process.poll() is None and os.getppid() == raylet:
            await asyncio.sleep(WATCH_S)
        await self._leave()
        os._exit(1)

    async def _announce(self) -> None:
        """Announces the replica to the balancer periodically, since the balancer may have restarted."""
        assert self._endpoint is not None
        assert self._agent is not None
        assert self._server is not None
        processes = {"pid": os.getpid(), "server_pid": self._server.process.pid}
        while True:
            state = self._agent.state
            known = {"demand": state.demand, "backlog_s": state.backlog_s, "percent": state.percent()}
            with suppress(*NO_BALANCER):
                balancer = ray.get_actor(BALANCER, NAMESPACE)
                await balancer.add.remote(self._endpoint, {**known, **self._served, **processes})
            await asyncio.sleep(ANNOUNCE_S)

    async def _leave(self) -> None:
        with suppress(*NO_BALANCER):
            await ray.get_actor(BALANCER, NAMESPACE).remove.remote(self._name)
