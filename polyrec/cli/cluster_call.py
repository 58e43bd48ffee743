"""Runs `polyrec cluster`: builds a spec from the arguments, calls cluster/control.py, prints the result."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrec.cluster.spec import (
    DEFAULT_GROUP,
    ClusterError,
    ClusterSpec,
    GroupSpec,
    fleet_replicas,
    plan_resources,
)
from polyrec.models.files import validate_as
from polyrec.models.text_table import aligned
from polyrec.planner.plan import load_plan
from polyrec.server.app.settings import load_settings


def run_call(args: argparse.Namespace) -> int:
    """Makes the call; returns the exit status. Raises PolyrecError."""
    spec = cluster_spec(args) if args.call == "up" else None
    os.environ["RAY_SERVE_LOG_TO_STDERR"] = "0"
    from polyrec.cluster import control, nodes

    if spec is not None:
        try:
            nodes.connect(args.address)
        except ClusterError:
            if args.address is not None:
                raise
            nodes.start_head(spec.way)
            nodes.connect(None)
        control.up(spec)
        print(f"{sum(g.replicas for g in spec.groups)} replicas behind http://{spec.host}:{spec.port}")
        return 0
    nodes.connect(args.address)
    if args.call == "status":
        status = control.status()
        print(json.dumps(status) if args.json else "\n".join(lines(status)))
    elif args.call == "roll":
        name, file = typed_file(args.plan)
        spec = control.roll(control.current(), name, checked_plan(file))
        print(f"every replica of group '{spec.group(name).name}' serves {file}")
    elif args.call == "scale":
        spec = control.scale(control.current(), args.type, args.replicas)
        print(f"group '{spec.group(args.type).name}' has {args.replicas} replicas")
    else:
        control.down()
        print("no replica is left; `ray stop` ends Ray")
    return 0


def cluster_spec(args: argparse.Namespace) -> ClusterSpec:
    """Builds the spec from the arguments of `up`. Raises PolyrecError."""
    plans = dict(typed_file(text) for text in args.plan)
    if args.fleet_plan is None:
        if list(plans) != [None]:
            raise ClusterError("give one --plan FILE; TYPE=FILE is for --fleet-plan")
        counts: Mapping[str, int] = {DEFAULT_GROUP: args.replicas or 1}
        plans = {DEFAULT_GROUP: plans[None]}
    else:
        counts = fleet_replicas(Path(args.fleet_plan), args.hour)
        missing = sorted(counts.keys() - plans.keys())
        if missing:
            raise ClusterError(f"the fleet plan has nodes '{missing[0]}'; give --plan {missing[0]}=FILE")
    settings = dict(named(text, "--set") for text in args.set)
    groups = []
    for name, replicas in counts.items():
        file = checked_plan(plans[name])
        # checked here, so that a mistake is reported once instead of by each replica
        load_settings({**settings, "plan": file, "port": 0}, {})
        given = dict(amount(text) for text in args.resource)
        of_type = {} if args.fleet_plan is None else {name: 1.0}
        group: dict[str, Any] = {
            "name": name,
            "plan": file,
            "replicas": replicas,
            "resources": plan_resources(load_plan(file)) | of_type | given,
            "settings": settings,
        }
        if args.autoscale is not None:
            least, most = args.autoscale
            group["replicas"] = least
            group["autoscale"] = {"least": least, "most": most, "worth": args.worth}
            if args.target_demand is not None:
                group["autoscale"]["target_demand"] = args.target_demand
        groups.append(validate_as(GroupSpec, group, f"group '{name}'", ClusterError))
    whole = {"host": args.host, "port": args.port, "way": args.way, "groups": tuple(groups)}
    return validate_as(ClusterSpec, whole, "the cluster", ClusterError)


def typed_file(text: str) -> tuple[str | None, Path]:
    """Splits [TYPE=]FILE."""
    name, equals, file = text.partition("=")
    return (name, Path(file)) if equals else (None, Path(text))


def named(text: str, flag: str) -> tuple[str, str]:
    """Splits NAME=VALUE. Raises ClusterError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ClusterError(f"{flag} {text}: it is NAME=VALUE")
    return name, value


def amount(text: str) -> tuple[str, float]:
    """Splits NAME=N of a resource. Raises ClusterError."""
    name, value = named(text, "--resource")
    try:
        return name, float(value)
    except ValueError:
        raise ClusterError(f"--resource {text}: '{value}' is not a number") from None


def checked_plan(file: Path) -> Path:
    """Returns the absolute path of a plan that can be read. Raises PlanError."""
    load_plan(file)
    return file.resolve()


def lines(status: Mapping[str, Any]) -> list[str]:
    """Formats the status."""
    shown = [f"{status['url']} by {status['way']}"]
    for group in status["groups"]:
        counts = ", ".join(f"{n} {state.lower()}" for state, n in group["replicas"].items() if n)
        shown.append(f"{group['name']}: {group['state'].lower()}, {counts or 'no replica'}; {group['plan']}")
        if group["message"]:
            shown.append(f"  {group['message']}")
    rows: list[Sequence[str]] = [["replica", "server", "balancer", "demand", "backlog ms", "weight %"]]
    for one in status["replicas"]:
        figures = [f"{one['demand']:.2f}", f"{1e3 * one['backlog_s']:.1f}", str(one["percent"])]
        rows.append([one["name"], one["url"], one["state"].lower(), *figures])
    return [*shown, *aligned(rows)]
