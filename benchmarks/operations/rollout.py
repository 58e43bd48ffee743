"""Checks that worse canaries are rolled back without labels, good ones promoted, and no request is lost.

    python -m benchmarks.operations.rollout BUNDLE --data ratings.parquet --json docs/results/rollout.json

Worse canaries have all or some rows of one table shuffled; their quality on the data's test rows is printed.
Finally, half of the requests go to a canary whose net is so large that it needs more than its share of the
machine, with bounds that nothing exceeds. This measures the stable version's latency beside it and beside an
idle canary. With `--beside`, programs that each use a core run beside all other cases instead. Requests are
rankings with Poisson arrivals, whose contexts and candidates are drawn from the data, split by a context
feature. The rollout starts some time after the load; every answer is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from benchmarks.command import command_parser, save
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.machine import machine
from polyrec.loadtest.results.outcome import Outcome
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import open_source
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.data.split import TEST
from polyrec.models.dlrm.dlrm import DLRM, DenseNet, dense_slots
from polyrec.models.embeddings.store import FloatRows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.evaluation.metrics import auc
from polyrec.models.evaluation.predictions import predict_all
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.traffic import Arrivals
from polyrec.server.child import start

TOKEN = "rollout benchmark token"
LAX = {
    "max_failed": 1,
    "max_late": 1,
    "max_slowdown": 1000,
    "slack_ms": 1e6,
    "max_psi": 1e6,
    "max_loss": 1e6,
}
"""Bounds that nothing exceeds."""
OTHER = "import os, sys; os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[1]))\nwhile True: pass"
"""A program that keeps a core busy."""
HEAVY_TOP = (4096, 4096)
BEFORE_S = 5.0
"""Seconds of load before the rollout starts."""


def shuffled(bundle: Bundle, table: str, share: float, folder: Path) -> Bundle:
    """Writes a bundle in which a share of the table's rows is shuffled."""
    model = deepcopy(bundle.model())
    random = np.random.default_rng(0)
    stage = model.stage
    assert isinstance(stage, TableStage)
    assert isinstance(stage.store, FloatRows)
    rows = stage.rows.slice_of(table)
    chosen = random.permutation(rows.stop - rows.start)[: round(share * (rows.stop - rows.start))]
    source = np.arange(rows.stop - rows.start)
    source[chosen] = random.permutation(chosen)
    with torch.no_grad():
        weight = stage.store.weight
        weight[rows] = weight[rows][torch.from_numpy(source)].clone()
    return write_bundle(folder, model, bundle.manifest.representation, bundle.encoder, {}, {})


def heavy(bundle: Bundle, folder: Path) -> Bundle:
    """Writes a bundle with the same vectors and a net of random weights that is a thousand times as costly.

    Keeps only the largest of nested widths.
    """
    model = bundle.model()
    made = bundle.manifest.architecture.model_copy(update={"top": HEAVY_TOP, "widths": ()})
    net = DenseNet(made, dense_slots(bundle.manifest.schema_), model.stage.slots)
    return write_bundle(
        folder, DLRM(model.stage, net), bundle.manifest.representation, bundle.encoder, {}, {}
    )


def turn(
    stable: Path, canary: Path, args: argparse.Namespace, request: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Runs one rollout under load; returns how and when it ended, and the outcomes of all requests.

    request: fields of the start call besides the plan.
    """
    settings = {"bundle": stable, "admin_token": TOKEN, "default_budget_ms": args.budget_ms}
    source = open_source(args.data, load_bundle(stable), seed)
    due_s = arrival_times(Arrivals(), args.rate, args.seconds, np.random.default_rng(seed))
    rows, body = source.sampled(np.full(due_s.size, args.candidates), seed)
    with start(settings) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        target = Target(server.url + RANK, {"Content-Type": "application/json"})
        load = load_of(
            target, due_s, args.seconds, body, rows=rows, budget_s=args.budget_ms / 1e3, prepare=True
        )
        found: dict[str, Any] = {}
        watching = threading.Thread(target=_roll_out, args=(client, canary, args, request, found))
        watching.start()
        outcome = run(target, load, Limits())
        watching.join()
    return found | fates(outcome)


def _roll_out(
    client: httpx.Client,
    canary: Path,
    args: argparse.Namespace,
    request: Mapping[str, Any],
    found: dict[str, Any],
) -> None:
    time.sleep(BEFORE_S)
    asked = time.monotonic()
    body = {"plan": str(canary.resolve()), "by": args.by, **request}
    client.post("/v1/admin/rollout/start", json=body).raise_for_status()
    began = time.monotonic()
    found["opened_s"] = round(began - asked, 2)
    while time.monotonic() - asked < args.seconds - 2 * BEFORE_S:
        status = client.get("/v1/admin/rollout").json()
        if status["rollout"] is None:
            (ended,) = status["ended"]
            found |= {
                "outcome": ended["outcome"],
                "after_s": round(ended["ended"] - ended["began"], 2),
                "reason": ended["reason"],
                "figures": ended["decision"]["figures"],
            }
            return
        time.sleep(0.2)
    # where opening took nearly all of the turn, nothing may have been decided yet
    decision = status["rollout"]["decision"]
    found |= {"outcome": "running", "figures": None if decision is None else decision["figures"]}


def fates(outcome: Outcome) -> dict[str, Any]:
    """Returns counts of statuses, requests lost and late, and latency."""
    latency_ms = 1e3 * outcome.latency_s
    return {
        "requests": int(outcome.status.size),
        "lost": int((outcome.status != 200).sum()),
        "late": int((outcome.latency_s > outcome.budget_s).sum()),
        "statuses": {str(s): n for s, n in Counter(outcome.status.tolist()).items()},
        "p50_ms": round(float(np.nanquantile(latency_ms, 0.5)), 2),
        "p99_ms": round(float(np.nanquantile(latency_ms, 0.99)), 2),
        "max_ms": round(float(np.nanmax(latency_ms)), 2),
        "driver_lag_p99_ms": round(1e3 * float(np.nanquantile(outcome.lag_s, 0.99)), 2),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--table", default="item", help="whose rows are shuffled (item)")
    parser.add_argument("--good", type=Path, help="another version, to be promoted (default: BUNDLE itself)")
    parser.add_argument("--by", default="user_id", help="field of the split (user_id)")
    parser.add_argument("--share", type=float, default=0.1, help="of the canary (.1)")
    parser.add_argument("--shuffled", default="1,.3,.1", help="shares of the rows (1,.3,.1)")
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=80.0, help="of load in a turn (80)")
    parser.add_argument("--promote-after", type=float, default=30.0)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--budget-ms", type=float, default=100.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="programs of one core each (0)")
    parser.add_argument("--beside-nice", type=int, default=19, help="their nice value (19)")
    parser.add_argument("--only", help="canary of the turns: good, idle, heavy or like '0.1 shuffled' (all)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    stable = load_bundle(args.bundle)
    turns: list[dict[str, Any]] = []
    with ExitStack() as opened:
        made = opened.enter_context(tempfile.TemporaryDirectory(prefix="polyrec-rollout-"))
        shares = [float(share) for share in args.shuffled.split(",")]
        worse = {s: shuffled(stable, args.table, s, Path(made) / f"shuffled-{s:g}") for s in shares}
        good = stable if args.good is None else load_bundle(args.good)
        of = {"good": good} | {f"{s:g} shuffled": bundle for s, bundle in worse.items()}
        predicted = predict_all({"stable": stable, **of}, args.data, (TEST,))
        aucs = {name: auc(p, predicted.label) for name, p in predicted.probabilities.items()}
        for _ in range(args.beside):
            other = opened.enter_context(
                subprocess.Popen([sys.executable, "-c", OTHER, str(args.beside_nice)])
            )
            opened.callback(other.kill)
        for name, bundle in of.items():
            for repeat in range(args.repeats if args.only in (None, name) else 0):
                bounds = {"promote_after_s": args.promote_after} if name == "good" else {}
                request = {"share": args.share, "bounds": bounds}
                found = turn(stable.path, bundle.path, args, request, repeat)
                lower = {"canary": name, "auc": round(aucs[name], 4)}
                lower["auc_lower"] = round(aucs["stable"] - aucs[name], 4)
                turns.append(lower | found)
                print(json.dumps(turns[-1]), flush=True)
        large = heavy(stable, Path(made) / "heavy")
        idle = {"share": 0, "shadow": 1e-9, "compare_per_s": 0}
        for name, request in (("idle", idle), ("heavy", {"share": 0.5, "shadow": 0})):
            wanted = name == args.only if args.beside else args.only in (None, name)
            for repeat in range(args.repeats if wanted else 0):
                found = turn(stable.path, large.path, args, {**request, "bounds": LAX}, repeat)
                turns.append({"canary": name} | found)
                print(json.dumps(turns[-1]), flush=True)
    if args.json:
        settings = {k: str(v) for k, v in vars(args).items() if k != "json"}
        whole = {"machine": machine(), "cores": os.cpu_count(), "settings": settings, "turns": turns}
        save(args.json, whole)


if __name__ == "__main__":
    main()
