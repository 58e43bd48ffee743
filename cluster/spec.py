"""The specification of a cluster: its ingress and its groups of identical replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict
from polyrec.planner.fleet.autoscaling import TARGET_DEMAND
from polyrec.planner.fleet.provisioning.description import NodeName
from polyrec.planner.plan import Plan

GroupName = NodeName
Ingress = Literal["balancer", "ray", "ray-haproxy"]
DEFAULT_GROUP = "default"


class ClusterError(PolyrecError):
    """A cluster cannot be started, reached or changed."""


class Autoscale(Strict):
    """Bounds on the number of replicas, and targets (see planner/fleet/autoscaling.py)."""

    least: Annotated[int, Field(ge=1)]
    most: Annotated[int, Field(ge=1)]
    target_demand: Annotated[float, Field(gt=0, le=1)] = TARGET_DEMAND
    worth: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Autoscale:
        if self.least > self.most:
            raise ValueError(f"at least {self.least} replicas are more than at most {self.most}")
        return self


class GroupSpec(Strict):
    """A group of identical replicas.

    plan: plan file, which every node has at the same path.
    revision: increases with each roll-out.
    resources: resources per replica: `CPU` (1 if not given), `GPU` and any that nodes were started with.
    settings: settings of the servers.
    """

    name: GroupName = DEFAULT_GROUP
    plan: Path
    revision: int = 0
    replicas: Annotated[int, Field(ge=1)] = 1
    autoscale: Autoscale | None = None
    resources: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)

    @property
    def application(self) -> str:
        """Name of the group's Serve application."""
        return f"polyrec-{self.name}"

    @property
    def reserved(self) -> dict[str, float]:
        """Resources that each replica reserves."""
        return {"CPU": 1.0} | self.resources

    def user_config(self) -> dict[str, object]:
        """Returns a replica's `user_config`, whose change makes the replica reload its server."""
        return {"plan": str(self.plan), "revision": self.revision}


class ClusterSpec(Strict):
    """A cluster.

    ingress: what listens for clients (`--way`). `balancer`: our HAProxy, which forwards to the servers'
        ports. `ray`: Ray Serve's proxy. `ray-haproxy`: Ray Serve's HAProxy mode.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    ingress: Ingress = "balancer"
    groups: Annotated[tuple[GroupSpec, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_group_behind_ray(self) -> ClusterSpec:
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError("two groups have the same name")
        if self.ingress != "balancer" and len(names) > 1:
            raise ValueError(f"way '{self.ingress}' supports one group of replicas; there are {len(names)}")
        return self

    def group(self, name: str | None) -> GroupSpec:
        """Returns a group by name, or for None the only group. Raises ClusterError."""
        found = [group for group in self.groups if name in (None, group.name)]
        if len(found) != 1:
            known = ", ".join(f"'{group.name}'" for group in self.groups)
            raise ClusterError(f"name one group of {known}")
        return found[0]

    def with_group(self, changed: GroupSpec) -> ClusterSpec:
        """Returns the spec with the group of the same name replaced."""
        groups = tuple(changed if group.name == changed.name else group for group in self.groups)
        return self.model_copy(update={"groups": groups})


def plan_resources(plan: Plan) -> dict[str, float]:
    """Returns the resources for one server: a CPU per CPU lane, at least one, and the plan's GPUs."""
    lanes = plan.all_lanes()
    gpus = len({lane.device for lane in lanes if lane.device.startswith("cuda")})
    found = {"CPU": float(max(sum(lane.device == "cpu" for lane in lanes), 1))}
    return found | ({"GPU": float(gpus)} if gpus else {})


def beyond_reserved(group: GroupSpec, plan: Plan) -> str:
    """Says which resources a plan needs beyond those that a group's replicas reserve, "" if none.

    A roll keeps what they reserve, so that they serve on while the new plan is loaded.
    """
    more = {k: n for k, n in plan_resources(plan).items() if n > group.reserved.get(k, 0.0)}
    if not more:
        return ""
    needed, kept = (" and ".join(f"{n:g} {k}" for k, n in of.items()) for of in (more, group.reserved))
    return (
        f"the plan needs {needed}, but each replica of group '{group.name}' reserves {kept}: others may take "
        "the rest. `polyrec cluster down` and `up` reserve anew"
    )


def fleet_replicas(file: Path, hour: int | None) -> Mapping[str, int]:
    """Returns the nodes of each type in a fleet plan, for one hour or the maximum, which may be 0.

    Raises ClusterError.
    """
    try:
        by_type: Mapping[str, list[int]] = json.loads(file.read_text())["nodes_by_type"]
        hours = {len(counts) for counts in by_type.values()}
        if hour is not None and not all(0 <= hour < n for n in hours):
            raise ClusterError(f"fleet plan '{file}' has {max(hours, default=0)} hours, the first is 0")
        return {k: max(v) if hour is None else v[hour] for k, v in by_type.items()}
    except OSError as e:
        raise ClusterError(f"fleet plan '{file}': {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ClusterError(f"'{file}' is not a fleet plan; `polyrec plan --fleet` writes one") from None
