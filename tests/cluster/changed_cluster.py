"""Changes a cluster by `polyrec cluster`, in namespaces of its own: changed_cluster.py PLAN OTHER REQUEST."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx

from polyrec.cli.main import main as polyrec
from polyrec.cluster import control, nodes
from polyrec.loadtest.traffic.request_bodies import INFER

URL = "http://127.0.0.1:8000"


def call(*arguments: str) -> None:
    assert polyrec(["cluster", *arguments]) == 0


def predict(request: bytes) -> int:
    """Returns the status of the answer."""
    headers = {"X-Latency-Budget-Ms": "20000"}
    return httpx.post(URL + INFER, content=request, headers=headers, timeout=30).status_code


def names() -> list[str]:
    return [str(one["name"]) for one in control.replicas()]


def walk(plan: str, other: str, request: bytes) -> None:
    nodes.start_head("balancer", arguments=["--num-cpus=2"])
    # so low a target that the requests sent here demand a second replica
    call("up", "--plan", plan, "--autoscale", "1:2", "--target-demand", "1e-9")
    while len(found := names()) < 2:
        assert predict(request) == 200
    call("roll", "--plan", other)
    assert names() == found, "a roll keeps the replicas that the load needs"
    call("down")
    call("up", "--plan", plan, "--way", "ray")  # of which Serve took no notice while it ran on
    assert predict(request) == 200, "another cluster has the ingress that it asked for"
    call("down")


if __name__ == "__main__":
    plan, other, request = sys.argv[1:]
    walk(plan, other, Path(request).read_bytes())
