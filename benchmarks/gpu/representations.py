"""Measures MP-Rec's choice of paths: profiles, plans and serves four representations on a CPU and a GPU.

    python -m benchmarks.gpu.representations --folder /tmp/mprec --out docs/results/gpu-representations.json
    python -m benchmarks.gpu.representations --folder /tmp/mprec --device cpu --small     # to try the steps

Bundles have the shape of the Kaggle model (2.0 M rows of 16; the paper's 33.8 M rows need more memory, not
more time per row), its DHE (1,024 hashes, 512-256) and random weights. So accuracies are not measured but
recalled from the paper, with select's assumed halfway. `polyrec profile` measures each bundle on each device,
`polyrec plan` chooses paths and lanes, and `polyrec bench` offers rising loads with lognormal sizes (mean
128) to one live server under each policy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import command_parser, save
from benchmarks.peers.models import MODELS, capped, write_model
from benchmarks.routing.mprec_machines import DECODER, HASHES, LARGEST
from benchmarks.routing.mprec_machines import MODELS as PUBLISHED
from polyrec.models.dlrm.representation import KINDS, Kind, Representation
from polyrec.models.embeddings.computed import Encoding

EXPONENT = 1.05
"""Exponent of the Zipf distribution of ids in requests."""
SMALL_ROWS = 20_000


def representation(kind: Kind, rows_of: dict[str, int], hidden: tuple[int, ...]) -> Representation | None:
    """Returns the paper's representation of a kind; select computes the LARGEST tables. None stores all."""
    if kind == "table":
        return None
    by_size = sorted(rows_of, key=lambda table: rows_of[table])
    stored = by_size[:-LARGEST] if kind == "select" else []
    cuts = {table: rows_of[table] for table in stored}
    return Representation(kind=kind, encoding=Encoding(k=HASHES, hidden=hidden), cuts=cuts)


def make_bundles(folder: Path, rows: int | None, hidden: tuple[int, ...] = DECODER) -> dict[Kind, Path]:
    """Writes the bundles that do not exist yet.

    rows: total rows of all tables; None: the Kaggle model's 2.0 M. hidden: widths of the decoders' layers.
    """
    model = MODELS["kaggle"]
    if rows is not None:
        model = replace(model, rows=rows)
    # a table also has rows for missing and unknown values
    sizes = {t: n + 2 for t, n in zip(model.schema.tables, capped(model.sizes, model.rows), strict=True)}
    bundles = {}
    for kind in KINDS:
        bundles[kind] = folder / kind
        if not bundles[kind].exists():
            write_model(model, bundles[kind], EXPONENT, representation(kind, sizes, hidden))
    return bundles


def accuracies() -> dict[Kind, float]:
    """Returns the paper's accuracies on Criteo Kaggle, as recalled; select's is assumed halfway."""
    known = PUBLISHED[0].accuracy
    halfway = (known["table"] + known["dhe"]) / 2
    return {kind: known.get(kind, halfway) for kind in KINDS}


def polyrec(*arguments: str, cores: Sequence[int]) -> str:
    """Runs a command of polyrec on these cores; returns its output. Raises CalledProcessError."""
    command = [sys.executable, "-m", "polyrec", *arguments]
    print("polyrec", *arguments, flush=True)
    kept = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # which a child inherits
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    finally:
        os.sched_setaffinity(0, kept)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Profiles, plans and serves; returns the profile, the plan's text and the bench's figures."""
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    bundles = make_bundles(folder, SMALL_ROWS if args.small else None)
    every = sorted(os.sched_getaffinity(0))
    # the driver's core is no lane's
    cores = every[: args.cores + 1] if len(every) > 2 else every
    profile, plan = folder / "profile.json", folder / "plan.json"
    given = [
        part for kind, right in accuracies().items() for part in ("--quality", f"{bundles[kind]}={right:g}")
    ]
    devices = "cpu" if args.device == "cpu" else f"cpu,gpu{args.device.partition(':')[2] or 0}"
    measured = ("--precisions", "fp32", "--seconds", f"{args.seconds:g}", "--max-rows", "1024")
    polyrec(
        "profile", *map(str, bundles.values()), "--devices", devices, "--metric", "accuracy", *given,
        *measured, "--out", str(profile), "--fresh", cores=cores,
    )  # fmt: skip
    traffic = f"rate={args.rates[len(args.rates) // 2]:g},sizes=lognormal:128"
    planned = ("--slo-ms", f"{args.slo_ms:g}", "--traffic", traffic, "--swing", "8")
    polyrec("plan", "--profile", str(profile), *planned, "--out", str(plan), cores=cores)
    text = polyrec("plan", "--explain", str(plan), cores=cores)
    print(text, flush=True)
    rates = ",".join(f"{rate:g}" for rate in args.rates)
    runs = ("--seconds", f"{args.seconds:g}", "--warmup", "0.5", "--no-search", "--no-step", "--rates", rates)
    served = polyrec(
        "bench", "--plan", str(plan), "--policies", args.policies, "--slo-ms", f"{args.slo_ms:g}",
        "--sizes", "lognormal:128", *runs, "--server-cores", ",".join(map(str, cores)), "--json", cores=every,
    )  # fmt: skip
    return {"profile": json.loads(profile.read_text()), "plan": text, "bench": json.loads(served)}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of bundles, profile and plan")
    parser.add_argument("--device", default="cuda:0", help="beside the CPU; cpu: none")
    parser.add_argument("--cores", type=int, default=4, help="of the server (default 4)")
    parser.add_argument("--slo-ms", type=float, default=10.0)
    parser.add_argument("--rates", type=float, nargs="+", default=[200, 500, 1000, 2000, 4000])
    parser.add_argument("--policies", default="all")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each path's profile and of each run")
    parser.add_argument("--small", action="store_true", help="small tables: no figures")
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    args = parser.parse_args()
    found = measure(args)
    save(args.out, found)


if __name__ == "__main__":
    main()
