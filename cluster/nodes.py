"""Connects to a Ray cluster, or starts one on this machine."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray

from polyrec.cluster.balancer import NAMESPACE
from polyrec.cluster.spec import ClusterError, Ingress

HAPROXY_MODE = "RAY_SERVE_ENABLE_HA_PROXY"
PORT = 6379
"""Default port of Ray's head."""
CONNECT_S = 5.0


def connect(address: str | None) -> None:
    """Connects to a running Ray cluster unless this process is connected already. Raises ClusterError.

    address: host:port of its head, None for the cluster of this machine.
    """
    if ray.is_initialized():
        return
    head = address or _last_head()
    if head is not None and not _listens(head):
        # after a crash of the machine, Ray itself would try the old head for many minutes
        raise ClusterError(f"no Ray is running at {head}: nothing listens there")
    try:
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as e:
        where = address or "this machine"
        raise ClusterError(f"no Ray is running at {where}: {str(e).splitlines()[0]}") from None


def start_head(ingress: Ingress, arguments: Sequence[str] = ()) -> None:
    """Starts Ray's head on this machine, reachable only locally. Raises ClusterError.

    arguments: additional arguments for `ray start`.
    """
    _start(["--head", f"--port={PORT}", "--include-dashboard=false", *arguments], "127.0.0.1", ingress)


def start_worker(head: str, ip: str, ingress: Ingress, arguments: Sequence[str] = ()) -> None:
    """Starts another node of a cluster on this machine. head: host:port. Raises ClusterError."""
    _start([f"--address={head}", *arguments], ip, ingress)


def ray_environment(ingress: Ingress) -> Mapping[str, str]:
    """Returns the environment variables that Ray's processes need for an ingress."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        # a replica's child processes end with it, even if it is killed
        "RAY_process_group_cleanup_enabled": "1",
        HAPROXY_MODE: "1" if ingress == "ray-haproxy" else "0",
    }


def _last_head() -> str | None:
    """Returns host:port of the head to which Ray would connect, None if it knows none.

    It is in RAY_ADDRESS or in a file of the last node that was started here, which remains after a crash.
    """
    environ = os.environ
    if environ.get("RAY_ADDRESS"):
        return environ["RAY_ADDRESS"]
    folder = Path(environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp")
    try:
        return (folder / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        return None


def _listens(address: str) -> bool:
    """Whether something listens at host:port. True for addresses of other forms, which Ray must judge."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdigit()) or "/" in host:
        return True
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return True
    except OSError:
        return False


def _start(arguments: Sequence[str], ip: str, ingress: Ingress) -> None:
    program = Path(sys.executable).with_name("ray")
    environ = {**os.environ, **ray_environment(ingress)}
    command = [str(program), "start", f"--node-ip-address={ip}", "--disable-usage-stats", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"`{' '.join(command[1:])}` failed: {(done.stderr or done.stdout).strip()[-500:]}")
