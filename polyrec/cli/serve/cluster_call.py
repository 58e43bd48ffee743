"""Runs `polyrec cluster`: builds a spec from the arguments, calls cluster/control.py, prints the result."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from polyrec.cluster.spec import (
    DEFAULT_GROUP,
    ClusterError,
    ClusterSpec,
    GroupSpec,
    beyond_reserved,
    fleet_replicas,
    plan_resources,
)
from polyrec.models.bundle.manifest import read_manifest
from polyrec.models.errors import PolyrecError
from polyrec.models.files import validate_as
from polyrec.models.text_table import aligned
from polyrec.planner.plan import load_plan
from polyrec.server.app.settings.environment import load_settings

WAITING_S = 10.0
"""Interval of saying what a call waits for."""


def run_call(args: argparse.Namespace) -> int:
    """Makes the call and returns the exit status. Raises PolyrecError."""
    spec = cluster_spec(args) if args.call == "up" else None
    os.environ["RAY_SERVE_LOG_TO_STDERR"] = "0"
    from polyrec.cluster import control, nodes

    if spec is not None:
        try:
            nodes.connect(args.address)
        except ClusterError:
            if args.address is not None:
                raise
            nodes.start_head(spec.ingress)
            nodes.connect(None)
        with report_waiting(control.status):
            control.up(spec)
        count = sum(g.replicas for g in spec.groups)
        print(f"{count} replica{'s' * (count > 1)} behind http://{spec.host}:{spec.port}")
        return 0
    try:
        nodes.connect(args.address)
    except ClusterError:
        left = control.stop_left() if args.call == "down" and args.address is None else []
        if not left:
            raise
        print(f"no Ray is running; stopped HAProxy, which it left at port {', '.join(map(str, left))}")
        return 0
    if args.call == "status":
        status = control.status()
        print(json.dumps(status) if args.json else "\n".join(lines(status)))
    elif args.call == "roll":
        name, file = typed_file(args.plan)
        with report_waiting(control.status):
            spec = control.roll(control.current(), name, checked_plan(file))
        group = spec.group(name)
        print(f"every replica of group '{group.name}' serves {file}")
        if why := beyond_reserved(group, load_plan(group.plan)):
            print(why, file=sys.stderr)
    elif args.call == "scale":
        with report_waiting(control.status):
            spec = control.scale(control.current(), args.type, args.replicas)
        print(f"group '{spec.group(args.type).name}' has {args.replicas} replica{'s' * (args.replicas > 1)}")
    else:
        control.down()
        print("no replica is left; `ray stop` ends Ray")
    return 0


def cluster_spec(args: argparse.Namespace) -> ClusterSpec:
    """Builds the spec from the arguments of `up`. Raises PolyrecError."""
    for flag, given, needed, there in (
        ("--hour", args.hour, "--fleet-plan", args.fleet_plan),
        ("--target-demand", args.target_demand, "--autoscale", args.autoscale),
        ("--worth", args.worth, "--autoscale", args.autoscale),
    ):
        if given is not None and there is None:
            raise ClusterError(f"{flag} needs {needed}")
    if args.fleet_plan is None:
        typed = [typed_file(text) for text in args.plan]
        if len(typed) > 1 or typed[0][0] is not None:
            raise ClusterError("give one --plan FILE; TYPE=FILE is for --fleet-plan")
        counts: Mapping[str, int] = {DEFAULT_GROUP: args.replicas or 1}
        plans = {DEFAULT_GROUP: typed[0][1]}
    else:
        counts, plans = fleet_groups(args)
    settings = dict(named(text, "--set") for text in args.set)
    groups = []
    for name, replicas in counts.items():
        file = checked_plan(plans[name])
        # check settings here, so that a mistake is reported once instead of by each replica
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
    whole = {"host": args.host, "port": args.port, "ingress": args.way, "groups": tuple(groups)}
    return validate_as(ClusterSpec, whole, "the cluster", ClusterError)


def fleet_groups(args: argparse.Namespace) -> tuple[dict[str, int], dict[str, Path]]:
    """Returns the replicas and the plan file of each type of the fleet plan. Raises ClusterError."""
    counts = fleet_replicas(Path(args.fleet_plan), args.hour)
    plans: dict[str, Path] = {}
    for text in args.plan:
        name, file = typed_file(text)
        if name is None:
            raise ClusterError(f"--plan {text}: with --fleet-plan, write TYPE=FILE")
        if name in plans:
            raise ClusterError(f"--plan {name}= is given twice")
        if name not in counts:
            known = ", ".join(f"'{one}'" for one in counts)
            raise ClusterError(f"--plan {text}: the fleet plan has no nodes '{name}', but {known or 'none'}")
        plans[name] = file
    found = {name: n for name, n in counts.items() if n}
    if not found:
        when = "" if args.hour is None else f" in hour {args.hour}"
        raise ClusterError(f"fleet plan '{args.fleet_plan}' has no nodes{when}")
    if missing := [name for name in found if name not in plans]:
        raise ClusterError(f"the fleet plan has nodes '{missing[0]}'; give --plan {missing[0]}=FILE")
    return found, plans


def typed_file(text: str) -> tuple[str | None, Path]:
    """Splits [TYPE=]FILE."""
    name, equals, file = text.partition("=")
    return (name, Path(file)) if equals else (None, Path(text))


def named(text: str, flag: str) -> tuple[str, str]:
    """Splits NAME=VALUE. Raises ClusterError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ClusterError(f"{flag} {text}: write NAME=VALUE")
    return name, value


def amount(text: str) -> tuple[str, float]:
    """Splits NAME=N of a resource. Raises ClusterError."""
    name, value = named(text, "--resource")
    try:
        return name, float(value)
    except ValueError:
        raise ClusterError(f"--resource {text}: '{value}' is not a number") from None


def checked_plan(file: Path) -> Path:
    """Returns the absolute path of a plan after checking that its bundles exist. Raises PlanError or
    BundleError.

    A replica that cannot open a rolled-out plan exits, so mistakes must be found before.
    """
    for bundle in {path.bundle for path in load_plan(file).paths}:
        read_manifest(bundle)
    return file.resolve()


@contextmanager
def report_waiting(status: Callable[[], Mapping[str, Any]], every_s: float = WAITING_S) -> Iterator[None]:
    """Reports on stderr, on each change, what a call waits for, because nodes with free capacity may never
    come.

    status: returns the cluster's status; called every `every_s`, and may fail while the cluster starts and
    ends.
    """
    from ray.exceptions import RayError

    ended = threading.Event()

    def tell() -> None:
        told: list[str] = []
        while not ended.wait(every_s):
            with suppress(PolyrecError, RayError):
                found = awaited(status())
                if found and found != told:
                    print("\n".join(found), file=sys.stderr, flush=True)
                told = found

    thread = threading.Thread(target=tell, name="what a call waits for", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def awaited(status: Mapping[str, Any]) -> list[str]:
    """Returns a line for each group that is not as wanted, with Ray's reason if it gives one."""
    return [
        f"waiting for group '{group['name']}': {state_of(group)}"
        + (f"; {group['message']}" if group["message"] else "")
        for group in status["groups"]
        if group["state"] != "RUNNING"
    ]


def state_of(group: Mapping[str, Any]) -> str:
    """Formats a group's state and the number of its replicas in each state."""
    counts = ", ".join(f"{n} {state.lower()}" for state, n in group["replicas"].items() if n)
    return f"{group['state'].lower()}, {counts or 'no replica'}"


def lines(status: Mapping[str, Any]) -> list[str]:
    """Formats the cluster's status."""
    shown = [f"{status['url']} by {status['way']}"]
    for group in status["groups"]:
        shown.append(f"{group['name']}: {state_of(group)}; {group['plan']}")
        if group["message"]:
            shown.append(f"  {group['message']}")
    rows: list[Sequence[str]] = [["replica", "server", "balancer", "demand", "backlog ms", "weight %"]]
    for one in status["replicas"]:
        figures = [f"{one['demand']:.2f}", f"{1e3 * one['backlog_s']:.1f}", str(one["percent"])]
        rows.append([one["name"], one["url"], one["state"].lower(), *figures])
    return [*shown, *aligned(rows)]
