"""Plans a fleet for a day of a million requests/s at peak, and compares it with simpler ways to provision.

    python -m benchmarks.fleet.plan_day      (writes docs/results/fleet-plan.md, .json and .png)

Uses MP-Rec's two models (benchmarks/routing/mprec_machines.py) on described machines. Latencies are rooflines
of the described speeds, accuracies are recalled from the paper, and prices are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any, Literal

from benchmarks.command import command_parser, save, timestamp
from benchmarks.fleet.plan_page import write
from benchmarks.routing.mprec_machines import MODELS, load_machine_of, profile
from benchmarks.routing.roofline import Assumed
from polyrec.loadtest.machine import processor
from polyrec.planner.devices import Machine
from polyrec.planner.fleet.provisioning.capability import build_fleet_problem
from polyrec.planner.fleet.provisioning.description import Fleet, FleetModel, NodeType
from polyrec.planner.fleet.provisioning.fleet_plan import FleetPlan, make_fleet_plan
from polyrec.planner.profile import Profile
from polyrec.planner.traffic import Sizes
from polyrec.report.page import require_matplotlib

HOURS = 24
PEAK = {"kaggle": 700_000.0, "terabyte": 300_000.0}
TROUGH = 0.25
"""Lowest rate of the day divided by the highest."""
PEAK_HOUR = 20
SLO_MS = 20.0
SIZES = Sizes(kind="lognormal", mean=128)
QUALITY = {"kaggle": 0.7881, "terabyte": 0.8084}
"""Required mean accuracy, between table's (.7879, .8081) and DHE's (.7894, .8099)."""
NODES = (
    NodeType(name="cpu8", price_per_hour=0.40),
    NodeType(name="cpu8-spot", price_per_hour=0.14, most=100, spot_loss=0.3),
    NodeType(name="cpu8-8gb", price_per_hour=0.32),
    NodeType(name="h200", price_per_hour=4.30),
)
MEMORY = 8 * 10**9


def machines() -> dict[str, Machine]:
    """Returns the node types' machines: shipped descriptions, one of them with less memory."""
    cpu = load_machine_of("cpu8")
    less = cpu.model_copy(update={"devices": (cpu.devices[0].model_copy(update={"memory_bytes": MEMORY}),)})
    return {"cpu8": cpu, "cpu8-spot": cpu, "cpu8-8gb": less, "h200": load_machine_of("cpu-h200")}


def rates(peak: float) -> tuple[float, ...]:
    """Returns queries/s by hour: a cosine from the trough to the peak."""
    swing = (1 - TROUGH) / 2
    around = (math.cos(2 * math.pi * (h - PEAK_HOUR) / HOURS) for h in range(HOURS))
    return tuple(round(peak * (1 - swing + swing * a)) for a in around)


def make_fleet(
    nodes: Sequence[NodeType] = NODES, asked: bool = True, over: Literal["day", "hour"] = "hour"
) -> Fleet:
    """Returns the day's fleet. asked: whether a mean accuracy is required, `over` each hour or the day."""
    models = tuple(
        FleetModel(
            name=name,
            profiles={node.name: Path(f"{node.name}.json") for node in nodes},
            slo_ms=SLO_MS,
            sizes=SIZES,
            rate=rates(peak),
            quality=QUALITY[name] if asked else None,
            quality_over=over,
        )
        for name, peak in PEAK.items()
    )
    return Fleet(nodes=tuple(nodes), models=models)


def as_good_as_dhe() -> Fleet:
    """Returns the day with DHE's accuracy required of each model in each hour."""
    fleet = make_fleet()
    best = {model.name: model.accuracy["dhe"] for model in MODELS}
    models = tuple(m.model_copy(update={"quality": best[m.name]}) for m in fleet.models)
    return fleet.model_copy(update={"models": models})


def make_profiles(only: str = "") -> dict[tuple[str, str], Profile]:
    """Returns profiles by model and node type. only: a single representation."""
    found = {}
    for model in MODELS:
        for name, machine in machines().items():
            made = profile(model, machine, Assumed())
            kept = tuple(p for p in made.paths if only in ("", p.representation))
            found[model.name, name] = made.model_copy(update={"paths": kept})
    return found


def figures(plan: FleetPlan, seconds: float) -> dict[str, Any]:
    """Returns the figures of one way to provision, as plain data for JSON."""
    return plan.as_dict() | {"seconds": round(seconds, 2)}


def compare() -> dict[str, Any]:
    """Plans the day with every way to provision."""
    daily = tuple(node.model_copy(update={"rented": "daily"}) for node in NODES)
    every = make_profiles()
    cases: dict[str, tuple[Fleet, dict[tuple[str, str], Profile]]] = {
        "plan": (make_fleet(), every),
        "peak": (make_fleet(daily, over="day"), every),
        "plan over the day": (make_fleet(over="day"), every),
        "cheapest": (make_fleet(asked=False), every),
        "as good as dhe": (as_good_as_dhe(), every),
    }
    for only in ("table", "table-int8", "dhe", "hybrid-int8", "hybrid"):
        cases[f"only {only}"] = (make_fleet(asked=False), make_profiles(only))
        cases[f"only {only}, peak"] = (make_fleet(daily, asked=False), make_profiles(only))
    gpus = tuple(node for node in NODES if node.name == "h200")
    cases["h200 alone"] = (make_fleet(gpus), every)
    found = {}
    for name, (fleet, profiles) in cases.items():
        began_s = process_time()
        plan = make_fleet_plan(build_fleet_problem(fleet, profiles))
        found[name] = figures(plan, process_time() - began_s)
        print(f"{name}: ${plan.cost:,.0f}, gap {plan.gap:.1e}, {process_time() - began_s:.1f} s", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), metavar="DIR")
    args = parser.parse_args(argv)
    require_matplotlib()
    found = {
        "made": timestamp(),
        "machine": processor(),
        "nodes": [node.model_dump() for node in NODES],
        "rates": {name: rates(peak) for name, peak in PEAK.items()},
        "quality": QUALITY,
        "slo_ms": SLO_MS,
        "ways": compare(),
    }
    save(args.out / "fleet-plan.json", found)
    write(found, args.out)


if __name__ == "__main__":
    main()
