"""A replica and its server; Ray only gives it a name and the way to its balancer."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from polyrec.cluster.balancer import Balancer
from polyrec.cluster.haproxy_config import Endpoint
from polyrec.cluster.spec import ClusterSpec, GroupSpec
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import save_plan, single_path_plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from ray import serve

    from polyrec.cluster import replica


class Handle:
    """Calls a balancer as Ray's handle of its actor does. announced: the replicas' endpoints."""

    def __init__(self, balancer: Balancer) -> None:
        self.announced: asyncio.Queue[Endpoint] = asyncio.Queue()
        self.add, self.remove = SimpleNamespace(remote=self._add), SimpleNamespace(remote=balancer.remove)
        self.balancer = balancer

    async def _add(self, endpoint: Endpoint, state: dict[str, Any]) -> None:
        await self.balancer.add(endpoint, state)
        await self.announced.put(endpoint)


@pytest.fixture
def handle(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """The way to a balancer; a replica of this process has a name and an address."""
    spec = ClusterSpec(ingress="ray", groups=(GroupSpec(plan=tmp_path / "plan.json"),))
    handle = Handle(Balancer(str(tmp_path / "balancer"), spec.model_dump_json()))
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="one"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(ray, "get_actor", lambda *_: handle)
    monkeypatch.setattr(replica, "ANNOUNCE_S", 0)
    # Serve awaits this; Python would call it too, and not await it
    monkeypatch.delattr(replica.Replica, "__del__")
    yield handle
    gc.collect()


STOP = replica.Replica.__del__


def test_a_rolled_replica_announces_the_capacity_of_its_new_plan(
    bundle: Bundle, tmp_path: Path, handle: Handle
) -> None:
    plans = [tmp_path / "slow.json", tmp_path / "fast.json"]
    for file, row_us in zip(plans, (400, 100), strict=True):
        plan = single_path_plan(bundle.path, bundle.name, "onnx")
        took_s = (row_us * 1e-6, row_us * 1024e-6)
        latency = LatencyModel(rows=(1, 1024), median_s=took_s, tail_s=took_s)
        path = plan.paths[0].model_copy(update={"latency": latency})
        save_plan(plan.model_copy(update={"paths": (path,)}), file)

    async def announced() -> list[float]:
        rolled = replica.Replica("all", {"drain_grace_s": "0"})
        found = []
        for revision, file in enumerate(plans):
            await rolled.reconfigure({"plan": str(file), "revision": revision})
            while not handle.announced.empty():
                handle.announced.get_nowait()
            found.append((await handle.announced.get()).rows_s)
        await STOP(rolled)
        return found

    slow, fast = asyncio.run(announced())
    assert fast == pytest.approx(4 * slow, rel=0.1)


def test_a_replica_whose_node_is_gone_leaves_and_ends(
    bundle: Bundle, tmp_path: Path, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_plan(single_path_plan(bundle.path, bundle.name, "onnx"), tmp_path / "plan.json")

    async def status() -> int:
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        alone = replica.Replica("all", {"drain_grace_s": "0"})
        await alone.reconfigure({"plan": str(tmp_path / "plan.json")})
        await handle.announced.get()
        monkeypatch.setattr(os, "_exit", ended.set_result)
        monkeypatch.setattr(os, "getppid", lambda: 1)
        found = await asyncio.wait_for(ended, 60)
        assert await handle.balancer.replicas() == []
        await STOP(alone)
        return found

    assert asyncio.run(status()) == 1
