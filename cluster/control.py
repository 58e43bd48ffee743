"""Starts, changes, describes and ends a cluster, for `polyrec cluster`. Ray must be connected."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from polyrec.cluster.balancer import BALANCER, NAMESPACE, Balancer
from polyrec.cluster.haproxy_process import HAProxy, private_folder
from polyrec.cluster.replica import Replica
from polyrec.cluster.request_router import PredictedCompletion
from polyrec.cluster.scaling import BacklogPolicy
from polyrec.cluster.spec import ClusterError, ClusterSpec, GroupSpec
from polyrec.models.version import code_version

MAX_ONGOING = 1000
"""Serve's limit of concurrent requests per replica, so high that the server's admission control decides."""
SHUTDOWN_S = 60.0
POLL_S = 0.1
REPORT_S = 0.2
"""Interval at which replicas report to Serve's request router."""


def up(spec: ClusterSpec) -> None:
    """Starts the ingress and all groups, and waits until all replicas answer. Raises ClusterError."""
    if _balancer() is not None:
        raise ClusterError("a cluster is up; `polyrec cluster down` ends it")
    http = {"host": spec.host, "port": spec.port}
    with _progress_hidden():
        if spec.ingress == "balancer":
            serve.start(proxy_location="Disabled")
        else:
            serve.start(proxy_location="HeadOnly", http_options=http)
    _start_balancer(spec)
    try:
        for group in spec.groups:
            _deploy(spec, group)
        _wait_until_known(spec)
    except ClusterError:
        down()
        raise


def roll(spec: ClusterSpec, name: str | None, plan: Path) -> ClusterSpec:
    """Rolls out a plan to a group's replicas, some at a time; returns the new spec.

    Raises ClusterError if a replica cannot open the plan; all replicas then serve the old one.
    """
    group = spec.group(name)
    changed = group.model_copy(update={"plan": plan, "revision": group.revision + 1})
    try:
        return _change(spec, changed)
    except ClusterError:
        # the replica that failed has ended, and the others still serve the old plan
        _change(spec, group)
        raise


def scale(spec: ClusterSpec, name: str | None, replicas: int) -> ClusterSpec:
    """Changes a group's number of replicas; removed ones drain first. Raises ClusterError."""
    group = spec.group(name)
    if group.autoscale is not None:
        raise ClusterError(f"group '{group.name}' scales automatically")
    changed = _change(spec, group.model_copy(update={"replicas": replicas}))
    _wait_until_known(changed)
    return changed


def down() -> None:
    """Drains and stops all replicas, then stops the ingress. Raises ClusterError."""
    balancer = _balancer()
    if balancer is None:
        raise ClusterError("no cluster is up; `polyrec cluster up` starts one")
    spec = current()
    with _progress_hidden():
        for group in spec.groups:
            serve.delete(group.application)
        if not serve.status().applications:
            # a running Serve ignores the proxies that the next cluster asks for
            serve.shutdown()  # type: ignore[no-untyped-call]
    ray.get(balancer.close.remote())
    ray.kill(balancer)


def stop_left() -> list[int]:
    """Stops each HAProxy on this machine that outlived its Ray, and returns their ports.

    Needs no Ray. The balancer of a Ray that runs after all starts its HAProxy again.
    """
    ports = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(_folder_name("*"))):
        port = int(folder.name.rpartition("-")[2])
        haproxy = HAProxy(private_folder(folder), "127.0.0.1", port)
        if haproxy.alive():
            asyncio.run(haproxy.stop())
            ports.append(port)
    return ports


def current() -> ClusterSpec:
    """Returns the spec of the running cluster. Raises ClusterError."""
    balancer = _balancer()
    if balancer is None:
        raise ClusterError("no cluster is up; `polyrec cluster up` starts one")
    return ClusterSpec.model_validate_json(ray.get(balancer.spec.remote()))


def status() -> dict[str, Any]:
    """Returns the spec, each group's state in Serve, and the replicas. Raises ClusterError."""
    spec = current()
    applications = serve.status().applications
    groups = []
    for group in spec.groups:
        found = applications.get(group.application)
        deployment = None if found is None else found.deployments.get("Replica")
        groups.append(
            {
                "name": group.name,
                "plan": str(group.plan),
                "revision": group.revision,
                "wanted": group.replicas if group.autoscale is None else group.autoscale.model_dump(),
                "state": "none" if found is None else str(found.status.value),
                "message": "" if deployment is None else _shortened(deployment.message),
                "replicas": {} if deployment is None else dict(deployment.replica_states),
            }
        )
    return {
        "way": spec.ingress,
        "url": f"http://{spec.host}:{spec.port}",
        "groups": groups,
        "replicas": replicas(),
    }


def replicas() -> list[dict[str, Any]]:
    """Returns the replicas that the balancer knows."""
    balancer = _balancer()
    return [] if balancer is None else list(ray.get(balancer.replicas.remote()))


def _change(spec: ClusterSpec, group: GroupSpec) -> ClusterSpec:
    changed = spec.with_group(group)
    ray.get(_balancer().set_spec.remote(changed.model_dump_json()))
    _deploy(changed, group)
    return changed


def _deploy(spec: ClusterSpec, group: GroupSpec) -> None:
    """Deploys or updates a group on Serve, and waits until that is done. Raises ClusterError."""
    asked = group.reserved
    actor = {"num_cpus": asked.pop("CPU"), "num_gpus": asked.pop("GPU", 0.0), "resources": asked}
    deployment = serve.deployment(
        name="Replica",
        ray_actor_options=actor,
        user_config=group.user_config(),
        max_ongoing_requests=MAX_ONGOING,
        health_check_period_s=1.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_timeout_s=SHUTDOWN_S,
        request_router_config={
            "request_router_class": PredictedCompletion,
            "request_routing_stats_period_s": REPORT_S,
        },
        **_replica_count(group),
    )(Replica)
    # use the code version as Serve's version, so that Serve replaces replicas only for new code; replicas
    # open new plans themselves, but with Serve's automatic versions every change would replace them
    versioned = deployment.options(version=code_version(), _internal=True)
    prefix = None if spec.ingress == "balancer" else "/"
    try:
        with _progress_hidden():
            serve.run(versioned.bind(group.name, group.settings), name=group.application, route_prefix=prefix)
    except RuntimeError as e:
        found = serve.status().applications.get(group.application)
        reasons = [] if found is None else [_shortened(d.message) for d in found.deployments.values()]
        raise ClusterError(f"group '{group.name}': {' '.join(reasons) or e}") from None


def _replica_count(group: GroupSpec) -> dict[str, Any]:
    """Returns Serve's options for a group's number of replicas, either fixed or from `BacklogPolicy`."""
    bounds = group.autoscale
    if bounds is None:
        return {"num_replicas": group.replicas}
    return {
        "autoscaling_config": {
            "min_replicas": bounds.least,
            "max_replicas": bounds.most,
            # no `initial_replicas`: Serve returns to them at every roll
            "metrics_interval_s": 1.0,
            # the policy itself delays the removal of replicas
            "upscale_delay_s": 0.0,
            "downscale_delay_s": 0.0,
            "look_back_period_s": 10.0,
            "policy": {"policy_function": BacklogPolicy, "policy_kwargs": bounds.model_dump()},
        }
    }


def _start_balancer(spec: ClusterSpec) -> None:
    """Starts the balancer's actor on this machine's node, where clients expect the port."""
    folder = private_folder(Path(tempfile.gettempdir()) / _folder_name(spec.port))
    (folder / "cluster.json").unlink(missing_ok=True)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    balancer: Any = (
        ray.remote(Balancer)
        .options(
            name=BALANCER,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=3,
            num_cpus=0,
            scheduling_strategy=here,
        )
        .remote(str(folder), spec.model_dump_json())
    )
    try:
        ray.get(balancer.open.remote())
    except ray.exceptions.RayError as e:
        ray.kill(balancer)
        raise ClusterError(f"the balancer did not start: {_reason(e)}") from None


def _wait_until_known(spec: ClusterSpec) -> None:
    """Waits until the balancer has exactly the replicas that Serve has."""
    wanted = sum(group.replicas for group in spec.groups if group.autoscale is None)
    exact = all(group.autoscale is None for group in spec.groups)
    while True:
        found = replicas()
        if len(found) == wanted if exact else len(found) >= wanted:
            return
        time.sleep(POLL_S)


def _folder_name(port: int | str) -> str:
    return f"polyrec-cluster-{os.getuid()}-{port}"


def _balancer() -> Any:
    try:
        return ray.get_actor(BALANCER, NAMESPACE)
    except ValueError:
        return None


def _shortened(message: str) -> str:
    """Returns the first sentence and the last line (the exception) of Serve's message."""
    lines = [line for line in message.splitlines() if line.strip()]
    if len(lines) < 2:
        return message
    return f"{lines[0].partition('. ')[0]}: {lines[-1].strip()}"


def _reason(error: Exception) -> str:
    return [line for line in str(error).splitlines() if line.strip()][-1]


@contextmanager
def _progress_hidden() -> Iterator[None]:
    """Keeps Serve's progress off the terminal."""
    log = logging.getLogger("ray.serve")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
