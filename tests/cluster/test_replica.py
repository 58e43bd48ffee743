"""A replica and its server; Ray only gives it a name and the way to its balancer."""

from __future__ import annotations

import asyncio
import gc
import warnings
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
        self._balancer = balancer

    async def _add(self, endpoint: Endpoint, state: dict[str, Any]) -> None:
        await self._balancer.add(endpoint, state)
        await self.announced.put(endpoint)


def test_a_rolled_replica_announces_the_capacity_of_its_new_plan(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = {row_us: tmp_path / f"{row_us}.json" for row_us in (400, 100)}
    for row_us, file in plans.items():
        plan = single_path_plan(bundle.path, bundle.name, "onnx")
        took_s = (row_us * 1e-6, row_us * 1024e-6)
        latency = LatencyModel(rows=(1, 1024), median_s=took_s, tail_s=took_s)
        path = plan.paths[0].model_copy(update={"latency": latency})
        save_plan(plan.model_copy(update={"paths": (path,)}), file)
    spec = ClusterSpec(ingress="ray", groups=(GroupSpec(plan=plans[400]),)).model_dump_json()

    async def announced() -> list[float]:
        handle = Handle(Balancer(str(tmp_path / "balancer"), spec))
        monkeypatch.setattr(ray, "get_actor", lambda *_: handle)
        rolled = replica.Replica("all", {"drain_grace_s": "0"})
        found = []
        for revision, file in enumerate(plans.values()):
            await rolled.reconfigure({"plan": str(file), "revision": revision})
            while not handle.announced.empty():
                handle.announced.get_nowait()
            found.append((await handle.announced.get()).rows_s)
        await rolled.__del__()
        monkeypatch.delattr(replica.Replica, "__del__")  # which Python would call as well, and not await
        return found

    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="one"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(replica, "ANNOUNCE_S", 0)
    slow, fast = asyncio.run(announced())
    gc.collect()  # while the class is without it
    assert fast == pytest.approx(4 * slow, rel=0.1)
