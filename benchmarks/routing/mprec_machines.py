"""Makes plans for MP-Rec's two machines, from described devices and published costs.

    python -m benchmarks.routing.mprec_machines [--json docs/results/mprec-machines.json] [--pictures DIR]

Machines: planner/machines/{mprec-large,small-accelerator}.yaml, 32 GB DRAM + 32 GB GPU and 1 GB DRAM +
200 MB GPU, without a disk tier, which the paper has not. Models: its DLRMs for Criteo Kaggle and Terabyte;
sizes and FLOP are counted from their published shapes, accuracies are the paper's as recalled ([M] in FACTS:
not checked against it). Latencies are rooflines (roofline.py), origin `derived`. Quantized
rows are not in the paper; of the fp32 rows' accuracy they lose what docs/quality.md measured on trivago.
Traffic: lognormal sizes of mean 128, Poisson.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from benchmarks.command import command_parser, save
from benchmarks.routing.roofline import Assumed, Work, latency
from polyrec.models.amounts import percent, rate, size
from polyrec.planner.deployment.proposal import Proposal, propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.solver.program import PlanImpossible
from polyrec.planner.devices import Machine, load_machine
from polyrec.planner.plan import PlannedPath
from polyrec.planner.profile import Memory, PathProfile, Profile
from polyrec.planner.traffic import Sizes, Traffic

TABLES, DENSE = 26, 13
LARGEST = 5
"""Tables that `select` computes; the others are stored."""
HASHES = 1024
DECODER = (512, 256)
LINE = 64
QUANTIZED = {"": 0.0, "-int8": 0.00001, "-int4": 0.00005}
"""Loss of accuracy by precision of rows; int8's is not distinguishable from 0 on trivago's test rows."""
MACHINES = ("mprec-large", "small-accelerator")
SLO_MS = (10, 50)
SWAMPED = 1_000_000
RATES = {"mprec-large": (100, 2_000, 20_000, 100_000), "small-accelerator": (10, 100, 1_000, 5_000)}
PICTURED = {"mprec-large": 1, "small-accelerator": 2}


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """One of the paper's DLRMs. largest: rows in its LARGEST tables. accuracy: by representation, [M]."""

    name: str
    width: int
    rows: float
    largest: float
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    accuracy: dict[str, float]


MODELS = (
    PublishedModel(
        "kaggle",
        16,
        33.8e6,
        0.983 * 33.8e6,
        (512, 256, 64),
        (512, 256),
        {"table": 0.7879, "dhe": 0.7894, "hybrid": 0.7898},
    ),
    PublishedModel(
        "terabyte",
        64,
        49.1e6,
        0.956 * 49.1e6,
        (512, 256),
        (512, 512, 256),
        {"table": 0.8081, "dhe": 0.8099, "hybrid": 0.8103},
    ),
)


def weights(widths: Sequence[int]) -> int:
    """Returns the number of weights of a stack of dense layers, without biases."""
    return sum(a * b for a, b in pairwise(widths))


def cost(
    model: PublishedModel, kind: str, row_bytes: float, decoder: Sequence[int] = DECODER
) -> tuple[Work, Memory]:
    """Returns work and memory of a representation. row_bytes: of a stored row. decoder: its hidden widths."""
    computed = {"table": 0, "select": LARGEST}.get(kind, TABLES)
    stored = {"select": TABLES - LARGEST, "dhe": 0}.get(kind, TABLES)
    slots = computed + stored + 1
    joined = slots * (slots - 1) // 2 + model.width
    net = weights((DENSE, *model.bottom, model.width)) + weights((joined, *model.top, 1))
    decoders = computed * weights((HASHES, *decoder, model.width))
    rows = model.rows - model.largest if kind == "select" else model.rows if stored else 0.0
    work = Work(
        flops=2.0 * (net + decoders) + 2.0 * slots * (slots - 1) // 2 * model.width,
        batch_bytes=4.0 * (net + decoders),
        # stored rows; codes and hidden layers of computed ones, written and read once
        row_bytes=stored * max(row_bytes, LINE) + computed * (HASHES + sum(decoder)) * 4 * 2,
        gathers=stored,
        link_bytes=8.0 * TABLES + 4.0 * DENSE,
    )
    tables = {"all": int(rows * row_bytes)} if stored else {}
    return work, Memory(tables=tables, fixed=int(work.batch_bytes))


def profile(model: PublishedModel, machine: Machine, assumed: Assumed) -> Profile:
    """Returns the profile of every representation of a model on every device."""
    precisions = {"": 4.0 * model.width, "-int8": model.width + 3.0, "-int4": model.width / 2 + 3.0}
    paths = []
    for kind, (suffix, row_bytes), device in product(model.accuracy, precisions.items(), machine.devices):
        if kind == "dhe" and suffix:
            continue
        work, memory = cost(model, kind, row_bytes)
        name = f"{kind}{suffix}"
        paths.append(
            PathProfile(
                path=PlannedPath(
                    name=f"{name}@{'cpu' if device.kind == 'cpu' else 'gpu0'}",
                    bundle=Path("/published") / model.name / name,
                    runtime="torch",
                    device=device.name,
                ),
                representation=name,
                quality=model.accuracy[kind] - QUANTIZED[suffix],
                memory=memory,
                latency=latency(work, device, assumed),
                origin="derived",
                quality_from="assumed",
                note="accuracy as recalled of MP-Rec; latency a roofline of described devices",
            )
        )
    return Profile(machine=machine, paths=tuple(paths))


def load_machine_of(name: str) -> Machine:
    """Returns a shipped machine without its disk."""
    none: dict[str, Any] = {"disk_bytes": None, "disk_bandwidth": None, "disk_latency_s": None}
    return load_machine(name).model_copy(update=none)


def propose_plan(made: Profile, slo_ms: float, queries: float) -> Proposal:
    """Returns the plan for a rate in queries per second. Raises PlanImpossible."""
    traffic = Traffic(rate=queries, sizes=Sizes(kind="lognormal", mean=128))
    return propose(made, Requirements(slo_ms / 1e3, traffic, swing=1.0), [None] * len(made.paths), more=False)


def plan(made: Profile, slo_ms: float, queries: float, only: str = "") -> dict[str, Any]:
    """Plans for one SLO and rate; returns the chosen paths and their figures. only: plan with this path."""
    if only:
        made = made.model_copy(update={"paths": tuple(p for p in made.paths if p.path.name == only)})
    try:
        proposal = propose_plan(made, slo_ms, queries)
    except PlanImpossible as impossible:
        return {"reason": str(impossible)}
    e = proposal.plan.expected
    assert e is not None
    assert proposal.plan.placement is not None
    return {
        "served": e.served,
        "accuracy": e.quality,
        "information_per_s": e.information_per_s,
        "paths": {p.path: p.share for p in e.paths},
        "memory": {m.place: m.used_bytes for m in proposal.plan.placement.memories},
        "bound": [f"{b.kind} of {b.what}" for b in e.bound],
    }


def fits(made: Profile) -> list[dict[str, Any]]:
    """Returns the bytes of each representation and the devices that can hold it."""
    devices = made.machine.devices
    return [
        {
            "representation": p.representation,
            "bytes": p.memory.total,
            "fits": [d.name for d in devices if p.memory.total <= d.memory_bytes],
        }
        for p in made.paths
        if p.path.device == devices[0].name
    ]


def draw_plan(made: Profile, queries: float, folder: Path, name: str) -> None:
    """Draws a plan's choice and memory."""
    from polyrec.report.chart import png
    from polyrec.report.plan import memory, routing_map

    proposal = propose_plan(made, SLO_MS[0], queries)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-choice.png").write_bytes(png(routing_map.draw(proposal)))
    (folder / f"{name}-memory.png").write_bytes(png(memory.draw(proposal.plan)))


def print_machine(
    sizes: list[dict[str, Any]], plans: list[dict[str, Any]], most: float, alone: dict[str, float]
) -> None:
    """Prints one machine with one model."""
    for one in sizes:
        where = ", ".join(one["fits"]) or "nothing"
        print(f"  {one['representation']:<12} {size(one['bytes']):>8}  fits {where}")
    for p in plans:
        head = f"  {p['slo_ms']:3} ms {p['queries_per_s']:8,} queries/s:"
        if "reason" in p:
            print(head, p["reason"])
            continue
        paths = ", ".join(f"{name} {percent(share)}" for name, share in p["paths"].items())
        print(head, f"served {percent(p['served'])}, accuracy {p['accuracy']:.4f}: {paths}")
    print(f"  swamped, {SLO_MS[0]} ms: {rate(most)} correct/s; each path alone:")
    for path, correct in sorted(alone.items(), key=lambda gain: -gain[1]):
        print(f"    {path:<18} {rate(correct):>12} correct/s, the plan {most / correct:.2f} times as many")


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    parser.add_argument("--cpu-start-us", type=float, default=50, help="assumed start of a batch, CPU (50)")
    parser.add_argument("--gpu-start-us", type=float, default=300, help="the same on a GPU (300)")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw a plan of each")
    args = parser.parse_args(argv)
    assumed = Assumed(args.cpu_start_us * 1e-6, args.gpu_start_us * 1e-6)
    results: list[dict[str, Any]] = []
    for name, model in product(MACHINES, MODELS):
        made = profile(model, load_machine_of(name), assumed)
        plans = [
            {"slo_ms": slo_ms, "queries_per_s": queries, **plan(made, slo_ms, queries)}
            for slo_ms, queries in product(SLO_MS, RATES[name])
        ]
        most = plan(made, SLO_MS[0], SWAMPED)
        each = {p.path.name: plan(made, SLO_MS[0], SWAMPED, p.path.name) for p in made.paths}
        alone = {
            path: found["information_per_s"] for path, found in each.items() if "information_per_s" in found
        }
        sizes = fits(made)
        print(f"\n{name}, {model.name}")
        print_machine(sizes, plans, most["information_per_s"], alone)
        results.append(
            {"machine": name, "model": model.name, "sizes": sizes, "plans": plans}
            | {"swamped": most, "alone": alone}
        )
        if args.pictures:
            draw_plan(made, RATES[name][PICTURED[name]], args.pictures, f"mprec-{name}-{model.name}")
    save(args.json, {"assumed": asdict(assumed), "results": results})


if __name__ == "__main__":
    main()
