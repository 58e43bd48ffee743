from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyrec.cluster.spec import (
    ClusterError,
    ClusterSpec,
    GroupSpec,
    beyond_reserved,
    fleet_replicas,
    plan_resources,
)
from polyrec.models.files import validate_as
from polyrec.planner.plan import Plan

PATH = {"bundle": "b", "runtime": "onnx"}


def test_a_server_occupies_a_cpu_for_each_lane_there_and_its_gpus() -> None:
    one = Plan.model_validate({"paths": [{**PATH, "name": "a"}]})
    assert plan_resources(one) == {"CPU": 1.0}
    several = {
        "paths": [{**PATH, "name": "a"}, {**PATH, "name": "b", "device": "cuda:0", "runtime": "torch"}],
        "lanes": [
            {"name": "c0", "kind": "process"},
            {"name": "c1", "kind": "process"},
            {"name": "g", "device": "cuda:0", "kind": "thread"},
        ],
    }
    assert plan_resources(Plan.model_validate(several)) == {"CPU": 2.0, "GPU": 1.0}


def test_a_rolled_plan_that_needs_more_than_replicas_reserve_is_told() -> None:
    lanes = [{"name": name, "kind": "process"} for name in ("c0", "c1")]
    gpu = {"name": "g", "device": "cuda:0", "kind": "thread"}
    paths = [{**PATH, "name": "a"}, {**PATH, "name": "b", "device": "cuda:0", "runtime": "torch"}]
    plan = Plan.model_validate({"paths": paths, "lanes": [*lanes, gpu]})

    def told(**reserved: float) -> str:
        return beyond_reserved(GroupSpec(name="g", plan=Path("p"), resources=reserved), plan)

    assert told(spot=1.0).startswith(
        "the plan needs 2 CPU and 1 GPU, but each replica of group 'g' reserves 1 CPU and 1 spot"
    )
    assert told(CPU=2.0).startswith("the plan needs 1 GPU, but each replica of group 'g' reserves 2 CPU: ")
    assert told(CPU=2.0, GPU=1.0) == told(CPU=3.0, GPU=1.0) == ""


def test_a_fleet_plan_gives_replicas_by_type_of_node(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"nodes_by_type": {"cpu8": [3, 5], "gpu": [1, 0], "spot": [0, 0]}}))
    assert fleet_replicas(file, None) == {"cpu8": 5, "gpu": 1, "spot": 0}
    assert fleet_replicas(file, 1) == {"cpu8": 5, "gpu": 0, "spot": 0}
    with pytest.raises(ClusterError, match="2 hours"):
        fleet_replicas(file, 2)
    file.write_text("{}")
    with pytest.raises(ClusterError, match="is not a fleet plan"):
        fleet_replicas(file, None)
    with pytest.raises(ClusterError, match="No such file"):
        fleet_replicas(tmp_path / "none", None)


def test_a_group_is_named_where_there_are_several() -> None:
    groups = (GroupSpec(name="a", plan=Path("a.json")), GroupSpec(name="b", plan=Path("b.json")))
    spec = ClusterSpec(groups=groups)
    assert spec.group("b").plan == Path("b.json")
    with pytest.raises(ClusterError, match="'a', 'b'"):
        spec.group(None)
    changed = spec.with_group(groups[1].model_copy(update={"replicas": 3}))
    assert [group.replicas for group in changed.groups] == [1, 3]
    assert ClusterSpec.model_validate_json(changed.model_dump_json()) == changed


def test_rays_own_ways_in_know_one_group() -> None:
    groups = tuple(GroupSpec(name=name, plan=Path("p.json")) for name in "ab")
    with pytest.raises(ClusterError, match="one group"):
        validate_as(ClusterSpec, {"ingress": "ray", "groups": groups}, "the cluster", ClusterError)
