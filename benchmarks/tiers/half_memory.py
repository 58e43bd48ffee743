"""Compares rows/s of a 20 M x 64 model with half of its rows in memory, with all in memory, and as planned.

    python -m benchmarks.tiers.half_memory make
    polyrec profile runs/half/large --tiers --precisions fp32 --devices cpu --quality runs/half/large=0.2 \\
        --seconds 4 --max-rows 512 --out runs/half/profile.json
    python -m benchmarks.tiers.half_memory measure --json docs/results/tier-half-memory.json

`make` writes the `large` model of benchmarks/peers with access counts from the requests' distribution and all
features in the candidate's role, so that profile, plan and requests have independent rows. `measure` plans
twice for one core, with all rows in memory and with half of their bytes, and runs a server for each plan, one
after the other so that they share no memory. It loads them over 16 connections in a closed loop from another
core and checks every answer. Each turn has its own requests, which repeat only if the turn sends more than
REQUESTS. The plans' predictions are compared at the server's mean batch size.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.command import CLIENT_CORE, SERVER_CORE, command_parser, save
from benchmarks.peers.load import Known, closed
from benchmarks.peers.models import MODELS, value_of_rank, write_model
from benchmarks.peers.queries import EXPONENT, binary_body, draw
from benchmarks.peers.reference import Reference
from polyrec.loadtest.drivers.server_pages import read_metrics
from polyrec.loadtest.machine import machine
from polyrec.loadtest.traffic.request_bodies import INFER
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.planner.deployment.proposal import Proposal, propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.plan import save_plan
from polyrec.planner.profile import Profile, load_profile
from polyrec.planner.traffic import Sizes, Traffic
from polyrec.server.child import start

ROWS = 23
REQUESTS = 16384
"""Number of different requests per turn."""
AT_ONCE = 128
"""Number of requests whose reference is computed at once."""
CONNECTIONS = 16
SLO_S = 0.05
PHASES = ("encode", "embed", "dense")


def plan_for(profile: Profile, share: float | None) -> Proposal:
    """Plans for a load beyond the core's capacity. share: of the rows' bytes in memory; None: no limit."""
    memory = profile.paths[0].memory
    rows = sum(memory.tables.values())
    budget = {} if share is None else {"cpu": int(share * rows) + memory.fixed + memory.peak}
    traffic = Traffic(rate=1e6, sizes=Sizes(kind="fixed", mean=ROWS))
    return propose(profile, Requirements(SLO_S, traffic, memory=budget, cores=1), bounds=False, more=False)


def counted(url: str) -> dict[str, float]:
    """Reads the counters of batches, rows, phases and tiers."""
    total = read_metrics(url).total
    found = {f"{p}_s": total("polyrec_phase_seconds_sum", phase=p) for p in PHASES}
    found["batches"] = total("polyrec_phase_seconds_count", phase="embed")
    for tier in ("host", "cache", "disk"):
        found[tier] = total("polyrec_embedding_hits_total", tier=tier)
    return found


def known_requests(bundle: Bundle, turns: int) -> list[Known]:
    """Draws the requests of each turn and computes their answers; the caller sets `url`."""
    drawn = draw(bundle.manifest.schema_, value_of_rank(bundle), REQUESTS * turns, ROWS)
    reference = Reference(bundle)
    parts = []
    for first in range(0, len(drawn), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        dense, sparse = drawn.dense[some], drawn.sparse[some]
        found = reference(dense.reshape(-1, dense.shape[2]), sparse.reshape(-1, sparse.shape[2]))
        parts.append(found.reshape(-1, ROWS))
    expected = np.concatenate(parts)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
    bodies = [binary_body(drawn, i) for i in range(len(drawn))]
    return [
        Known("", headers, bodies[first : first + REQUESTS], expected[first : first + REQUESTS], 1e-5, True)
        for first in range(0, len(drawn), REQUESTS)
    ]


def measured(known: list[Known], url: str, seconds: float) -> dict[str, Any]:
    """Loads a server with each turn's requests; the first turn is not counted."""
    rates, moved = [], dict[str, float]()
    for turn, requests in enumerate(known):
        before = counted(url)
        loop = closed(replace(requests, url=url + INFER), CONNECTIONS, seconds)
        if not turn:
            continue
        rates.append(loop.requests_per_s * ROWS)
        for name, value in counted(url).items():
            moved[name] = moved.get(name, 0.0) + value - before[name]
    rows = sum(rates) * seconds
    batches = max(moved["batches"], 1.0)
    return {
        "rows_per_s": median(rates),
        "turns_rows_per_s": rates,
        "batch_rows": rows / batches,
        "batch_ms": 1e3 * sum(moved[f"{p}_s"] for p in PHASES) / batches,
        "phases_ms": {p: 1e3 * moved[f"{p}_s"] / batches for p in PHASES},
        "lookups": {tier: moved[tier] / (26 * rows) for tier in ("host", "cache", "disk")},
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("step", choices=["make", "measure"])
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/half"), help="of model and files; a real disk"
    )
    parser.add_argument("--share", type=float, default=0.5, help="of the rows' bytes as memory")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.step == "make":
        args.folder.mkdir(parents=True, exist_ok=True)
        write_model(MODELS["large"], args.folder / "large", EXPONENT)
        return
    profile = load_profile(args.folder / "profile.json")
    bundle = load_bundle(args.folder / "large")
    known = known_requests(bundle, args.turns + 1)
    found: dict[str, Any] = {}
    for name, share in (("memory", None), ("tiers", args.share)):
        proposal = plan_for(profile, share)
        plan, (option,) = proposal.plan, (proposal.problem.options[i] for i in proposal.choice.options)
        assert plan.placement is not None
        assert plan.expected is not None
        placement = plan.placement.model_copy(update={"directory": args.folder.resolve()})
        save_plan(plan.model_copy(update={"placement": placement}), args.folder / "plan.json")
        with start({"plan": args.folder / "plan.json", "drain_grace_s": 0}, core=SERVER_CORE) as server:
            os.sched_setaffinity(0, {CLIENT_CORE})
            result = measured(known, server.url, args.seconds)
        rows = result["batch_rows"]
        result |= {
            "predicted_batch_ms": 1e3 * option.timing.median(rows),
            "predicted_rows_per_s": plan.expected.rows_per_s,
            "predicted_lookups": plan.placement.paths[0].lookups,
            "lane": plan.lanes[0].kind,
            "memory_bytes": option.device_bytes,
        }
        found[name] = result
        print(name, json.dumps(result, indent=1))
    ratio = found["tiers"]["rows_per_s"] / found["memory"]["rows_per_s"]
    said = found["tiers"]["predicted_rows_per_s"] / found["memory"]["predicted_rows_per_s"]
    print(f"tiers / memory: measured {ratio:.3f}, planned {said:.3f}")
    save(args.json, {"machine": machine(), **found})


if __name__ == "__main__":
    main()
