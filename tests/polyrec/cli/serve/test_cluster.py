"""Arguments and status of `polyrec cluster`; a whole cluster: tests/benchmarks/fleet/test_cluster.py."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from polyrec.cli.main import build_parser, main
from polyrec.cli.serve.cluster_call import awaited, cluster_spec, lines, report_waiting
from polyrec.cluster.spec import Autoscale, ClusterError, ClusterSpec
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import BundleError
from polyrec.planner.plan import save_plan, single_path_plan


@pytest.fixture
def plan(bundle: Bundle, tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    save_plan(single_path_plan(bundle.path, bundle.name, "onnx"), file)
    return file


def spec(*arguments: str) -> ClusterSpec:
    return cluster_spec(build_parser(["cluster"]).parse_args(["cluster", "up", *arguments]))


def test_one_group_takes_the_resources_of_the_plan_or_those_given(plan: Path) -> None:
    (group,) = spec("--plan", str(plan), "--replicas", "3", "--set", "drain_grace_s=2").groups
    assert (group.plan, group.replicas, group.resources) == (plan, 3, {"CPU": 1.0})
    assert group.settings == {"drain_grace_s": "2"}
    (group,) = spec("--plan", str(plan), "--resource", "CPU=.5", "--resource", "big=1").groups
    assert group.resources == {"CPU": 0.5, "big": 1.0}


def test_a_fleet_plan_makes_a_group_of_each_type(plan: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps({"nodes_by_type": {"c5.large": [1, 4], "gpu": [1, 0]}}))
    plans = ("--plan", f"c5.large={plan}", "--plan", f"gpu={plan}", "--fleet-plan", str(fleet))
    (group,) = spec(*plans, "--hour", "1").groups
    assert (group.name, group.replicas, group.resources["c5.large"]) == ("c5.large", 4, 1.0)
    assert [group.name for group in spec(*plans).groups] == ["c5.large", "gpu"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--plan", "cpu=a"], "give --plan gpu=FILE"),
        (["--plan", "cpu=a", "--plan", "gpuu=b"], "no nodes 'gpuu', but 'cpu', 'gpu'"),
        (["--plan", "cpu=a", "--plan", "cpu=b"], "--plan cpu= is given twice"),
        (["--plan", "a"], "write TYPE=FILE"),
        (["--plan", "cpu=a", "--hour", "1"], "has no nodes in hour 1"),
    ],
)
def test_plans_that_do_not_match_the_fleet_plan_are_refused(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps({"nodes_by_type": {"cpu": [1, 0], "gpu": [1, 0]}}))
    with pytest.raises(ClusterError, match=told):
        spec("--fleet-plan", str(fleet), *arguments)


def test_autoscaling_starts_with_the_least(plan: Path) -> None:
    found = spec("--plan", str(plan), "--autoscale", "2:6", "--target-demand", ".7", "--worth", "3")
    assert found.groups[0].replicas == 2
    assert found.groups[0].autoscale == Autoscale(least=2, most=6, target_demand=0.7, worth=3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--plan", "none.json"], "no plan file"),
        (["--plan", "{plan}", "--set", "drain_grace_s=soon"], "--drain-grace-s"),
        (["--plan", "{plan}", "--set", "drain_grace_s"], "write NAME=VALUE"),
        (["--plan", "a={plan}"], "TYPE=FILE is for --fleet-plan"),
        (["--plan", "{plan}", "--plan", "other.json"], "give one --plan FILE"),
        (["--plan", "{plan}", "--hour", "3"], "--hour needs --fleet-plan"),
        (["--plan", "{plan}", "--target-demand", ".5"], "--target-demand needs --autoscale"),
        (["--plan", "{plan}", "--worth", "3"], "--worth needs --autoscale"),
        (["--plan", "{plan}", "--port", "70000"], "port"),
        (["--plan", "{plan}", "--resource", "CPU=-1"], "CPU"),
        (["--plan", "{plan}", "--resource", "CPU=x"], "--resource CPU=x"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], told: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "up", *(text.format(plan=plan) for text in arguments)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_plan_without_its_bundle_is_found_before_any_replica_opens_it(plan: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "plan.json"
    moved.parent.mkdir()
    save_plan(single_path_plan(Path("none"), "table", "onnx"), moved)
    with pytest.raises(BundleError, match=r"there is no manifest\.json"):
        spec("--plan", str(moved))


def test_a_group_is_waited_for_until_it_is_as_wanted() -> None:
    group = {"name": "gpu", "state": "DEPLOYING", "message": "", "replicas": {"RUNNING": 1, "STARTING": 2}}
    found = {"groups": [group, {**group, "name": "cpu", "state": "RUNNING"}]}
    assert awaited(found) == ["waiting for group 'gpu': deploying, 1 running, 2 starting"]
    group["message"] = 'Resources required for each replica: {"GPU": 1.0}'
    assert awaited(found)[0].endswith('; Resources required for each replica: {"GPU": 1.0}')


def test_wait_messages_are_printed_when_the_state_changes(capsys: pytest.CaptureFixture[str]) -> None:
    errors = pytest.importorskip("ray.exceptions", reason="the extra `cluster` is not installed")
    group = {"name": "gpu", "message": "", "replicas": {}}
    states = iter(["gone", "DEPLOYING", "DEPLOYING", "RUNNING", "UPDATING"])
    all_asked = threading.Event()

    def status() -> dict[str, Any]:
        state = next(states, None)
        if state is None:
            all_asked.set()
        if state in (None, "gone"):
            # as of an actor that starts or has ended, which must not show a traceback
            raise errors.RayError("the balancer has ended")
        return {"groups": [{**group, "state": state}]}

    with report_waiting(status, every_s=1e-4):
        assert all_asked.wait(60)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"waiting for group 'gpu': {state}, no replica" for state in ("deploying", "updating")]


def test_the_status_shows_groups_and_replicas() -> None:
    group = {"name": "cpu8", "plan": "p.json", "state": "RUNNING", "message": "", "replicas": {"RUNNING": 2}}
    replica = {
        "name": "cpu8-x",
        "url": "http://10.0.0.1:1",
        "state": "UP",
        "demand": 0.5,
        "backlog_s": 0.01,
        "percent": 90,
    }
    shown = lines(
        {"url": "http://127.0.0.1:8000", "way": "balancer", "groups": [group], "replicas": [replica]}
    )
    assert shown[0] == "http://127.0.0.1:8000 by balancer"
    assert shown[1] == "cpu8: running, 2 running; p.json"
    assert shown[-1].split() == ["cpu8-x", "http://10.0.0.1:1", "up", "0.50", "10.0", "90"]
