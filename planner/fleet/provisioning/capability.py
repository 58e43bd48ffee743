"""Computes the capability of each node type: seconds of its devices per query, by path and size class.

It needs the profiles and the fleet's description. Device time, batching and headroom under the SLO are
modeled as for a single machine (planner/deployment/option.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from polyrec.models.amounts import size
from polyrec.models.files import read_json
from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.solver.problem import Problem, build_problem
from polyrec.planner.deployment.traffic_classes import size_classes
from polyrec.planner.devices import Machine, load_machine
from polyrec.planner.fleet.provisioning.description import Fleet, FleetError, FleetModel, NodeType
from polyrec.planner.plan import load_plan
from polyrec.planner.profile import Memory, PathProfile, Profile, load_profile, on_machine
from polyrec.planner.traffic import Traffic

FRONT = "front"
Profiles = Mapping[tuple[str, str], Profile]
"""By model and node type."""


@dataclass(frozen=True, slots=True)
class Runnable:
    """A path of a model on a node type.

    usage: float64 [resources, classes], seconds per query; inf if it cannot meet the SLO. value: value of an
    answered row, equal for paths that are not shown to differ. quality: measured quality. rows_bytes: bytes
    of its bundle's rows, charged once for all of the bundle's paths on the device.
    """

    model: int
    name: str
    representation: str
    device: str
    usage: F64
    value: float
    quality: float
    bundle: str
    rows_bytes: float
    fixed_bytes: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A node type in numbers. capacity: seconds per second of each resource. bytes: memory of each device."""

    name: str
    price: float
    most: int | None
    daily: bool
    spot_loss: float
    resources: tuple[str, ...]
    capacity: F64
    bytes: dict[str, float]
    lanes: dict[str, int]
    runnables: tuple[Runnable, ...]

    def used_bytes(self, device: str, paths: Sequence[Runnable]) -> float:
        """Returns the bytes that paths take together on their device.

        Rows count once per bundle, buffers once per model and lane.
        """
        rows = {r.bundle: r.rows_bytes for r in paths}
        peaks = {m: max(r.peak_bytes for r in paths if r.model == m) for m in {r.model for r in paths}}
        used = sum(rows.values()) + sum(r.fixed_bytes for r in paths)
        return used + self.lanes.get(device, 1) * sum(peaks.values())


@dataclass(frozen=True, slots=True)
class Demand:
    """A model's queries.

    rows: rows per query, [classes]. queries: queries per second, [classes, hours]. quality: minimum mean
    quality, in each hour if `hourly`.
    """

    name: str
    rows: F64
    queries: F64
    weight: float
    quality: float | None
    hourly: bool = False


@dataclass(frozen=True, slots=True)
class FleetProblem:
    """Input of the optimization program: capabilities of nodes, and demands of models.

    spare: share of the expected rate that demands include on top of it.
    """

    offers: tuple[NodeOffer, ...]
    demands: tuple[Demand, ...]
    hours: int
    spare: float = 0.0


def load_profiles(fleet: Fleet) -> dict[tuple[str, str], Profile]:
    """Reads the files that the fleet names. Raises FleetError, ProfileError or MachineError."""
    types = {node.name: node for node in fleet.nodes}
    return {
        (model.name, name): _read(file, types[name])
        for model in fleet.models
        for name, file in model.profiles.items()
    }


def build_fleet_problem(fleet: Fleet, profiles: Profiles) -> FleetProblem:
    """Computes costs of every path on every node type. Raises FleetError."""
    demands = []
    for model in fleet.models:
        classes = size_classes(model.sizes)
        rate = np.array(model.rate) * (1 + fleet.spare)
        queries = np.outer([c.share for c in classes], rate)
        demands.append(
            Demand(
                model.name,
                np.array([c.rows for c in classes]),
                queries,
                model.weight,
                model.quality,
                model.quality_over == "hour",
            )
        )
    offers = tuple(_offer(node, fleet.models, profiles) for node in fleet.nodes)
    for m, model in enumerate(fleet.models):
        all_own = [(offer, r) for offer in offers for r in offer.runnables if r.model == m]
        if not all_own:
            raise FleetError(f"model '{model.name}': no path on any node type meets {model.slo_ms:g} ms")
        alone = [(offer.used_bytes(r.device, [r]), offer, r) for offer, r in all_own]
        own = [r for used, offer, r in alone if used <= offer.bytes[r.device]]
        if not own:
            used, offer, r = min(alone, key=itemgetter(0))
            raise FleetError(
                f"model '{model.name}': no path fits into a node's memory; '{r.name}' needs "
                f"{size(used)} of '{offer.name}', which has {size(offer.bytes[r.device])}"
            )
        best = max(r.quality for r in own)
        if model.quality is not None and model.quality > max(best, max(r.value for r in own)):
            raise FleetError(
                f"model '{model.name}' asks for quality {model.quality:g}, its best path has {best:g}"
            )
    return FleetProblem(offers, tuple(demands), fleet.hours, fleet.spare)


def _offer(node: NodeType, models: tuple[FleetModel, ...], profiles: Profiles) -> NodeOffer:
    lanes: dict[str, int] = {}
    memory: dict[str, float] = {}
    machine: Machine | None = None
    problems = []
    for m, model in enumerate(models):
        profile = profiles.get((model.name, node.name))
        if profile is None:
            continue
        machine = machine or profile.machine
        traffic = Traffic(rate=max(*model.rate, 1.0), sizes=model.sizes)
        needs = Requirements(model.slo_ms / 1e3, traffic)
        problem = build_problem(profile, needs, [None] * len(profile.paths))
        problems.append((m, problem))
        for name, device_lanes in problem.lanes.items():
            lanes[name] = min(lanes.get(name, device_lanes.count), device_lanes.count)
        for device in profile.machine.devices:
            found = float(device.memory_bytes)
            memory[device.name] = min(memory.get(device.name, found), found)
    if machine is None:
        raise FleetError(f"node type '{node.name}': no model has a profile of it")
    resources = (*lanes, FRONT)
    return NodeOffer(
        name=node.name,
        price=_price(node, machine),
        most=node.most,
        daily=node.rented == "daily",
        spot_loss=node.spot_loss,
        resources=resources,
        capacity=np.array([*(float(n) for n in lanes.values()), 1.0]),
        bytes=memory,
        lanes=lanes,
        runnables=tuple(one for m, problem in problems for one in _runnables(m, problem, resources)),
    )


def _runnables(model: int, problem: Problem, resources: Sequence[str]) -> Iterator[Runnable]:
    reader = problem.inline or FRONT
    for option in problem.options:
        p = problem.paths[option.path]
        usage = np.zeros((len(resources), len(problem.classes)))
        usage[resources.index(p.path.device)] = option.cost_s
        usage[resources.index(reader)] += problem.front_s
        yield Runnable(
            model=model,
            name=p.path.name,
            representation=p.representation,
            device=p.path.device,
            usage=usage,
            value=problem.values[option.path],
            quality=p.quality,
            bundle=str(p.path.bundle),
            rows_bytes=option.device_bytes,
            fixed_bytes=float(p.memory.fixed),
            peak_bytes=float(p.memory.peak),
        )


def _price(node: NodeType, machine: Machine) -> float:
    """Returns dollars per hour. Raises FleetError if neither the type nor its machine's devices have one."""
    if node.price_per_hour is not None:
        return node.price_per_hour
    prices = [d.price_per_hour for d in machine.devices]
    if any(p is None for p in prices):
        raise FleetError(f"node type '{node.name}' needs price_per_hour: its machine's devices lack one")
    return sum(p for p in prices if p is not None)


def _read(file: Path, node: NodeType) -> Profile:
    """Reads a profile, or a plan whose paths all fit the node's memory together."""
    if _is_plan(file):
        if node.machine is None:
            raise FleetError(f"node type '{node.name}': a plan ('{file}') needs the machine it is for")
        plan = load_plan(file)
        paths = []
        for p in plan.paths:
            if p.latency is None or p.quality is None:
                raise FleetError(f"plan '{file}': path '{p.name}' has no latency or quality; use a profile")
            paths.append(
                PathProfile(
                    path=p,
                    representation=p.name.partition("@")[0],
                    quality=p.quality,
                    memory=Memory(tables={}, fixed=0),
                    latency=p.latency,
                )
            )
        return Profile(
            machine=load_machine(node.machine),
            paths=tuple(paths),
            metric=plan.metric,
            differences=plan.differences,
        )
    profile = load_profile(file)
    if node.machine is None:
        return profile
    return on_machine(profile, load_machine(node.machine, profile.machine), node.machine)


def _is_plan(file: Path) -> bool:
    try:
        raw = read_json(file, f"profile '{file}'", FleetError)
    except FileNotFoundError:
        return False  # reported by load_profile, with the command that makes one
    return "machine" not in raw
