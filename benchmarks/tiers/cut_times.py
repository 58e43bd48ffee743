"""Compares predicted batch times at cuts that the profile does not measure with measured ones.

    python -m benchmarks.tiers.cut_times --json docs/results/tier-cut-times.json

Makes bundles with untrained rows (served_model.py) and measures them at eight cuts as `polyrec profile
--tiers` does. The cost model is fitted to the cuts and sizes that the profile measures, and predicts the
others from the time with all rows in memory. `serial` is the planner's earlier formula: each lookup beyond
memory waits for a page read, one after the other.

Measurements are stored in --folder, and an interrupted run resumes there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.command import command_parser, save
from benchmarks.tiers.served_model import bundle_of
from polyrec.loadtest.machine import machine
from polyrec.measure.machine.discover import discover
from polyrec.measure.profile.candidates import Candidate, candidates
from polyrec.measure.profile.cut_fit import MeasuredCut, fit, predicted
from polyrec.measure.profile.cuts import SHARES, SIZES, cut, measure_cuts, stored_tables
from polyrec.measure.profile.log import SampleLog
from polyrec.measure.profile.measure import ProfileSettings
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.deployment.opened import batch_reads
from polyrec.planner.devices import Machine
from polyrec.planner.tier_times import CutPoint

UNSEEN_SHARES = (0.45, 0.2, 0.07, 0.025)
UNSEEN_SIZES = (4, 48, 320)
MODELS = {
    "64 numbers, Zipf 1.0": (300_000, 1.0, 64),
    "16 numbers, Zipf 1.2": (1_000_000, 1.2, 16),
    "64 numbers, Zipf 0.8": (300_000, 0.8, 64),
}
"""Rows of each of five large tables, exponent, width."""
PAGE = 4096


def candidate_of(name: str, folder: Path, on: Machine) -> Candidate:
    """Makes a model's bundle if it does not exist; returns its path on the CPU."""
    rows, exponent, width = MODELS[name]
    path = folder / f"rows{rows}-zipf{exponent}-width{width}"
    bundle = load_bundle(path) if path.exists() else bundle_of(path, rows, exponent, width)
    (found,) = candidates({path.name: bundle}, on.devices[:1], ["onnx"], ["fp32"], folder, "")
    return found


def measured(candidate: Candidate, seconds: float, folder: Path) -> dict[float, MeasuredCut]:
    """Measures all cuts, or reads an earlier run's measurements."""
    tables = stored_tables(candidate.bundle)
    found: dict[float, MeasuredCut] = {}
    with SampleLog(folder / f"{candidate.bundle.path.name}.log", {"seconds": seconds}) as log:
        for shares, sizes in ((SHARES, SIZES), (UNSEEN_SHARES, UNSEEN_SIZES)):

            def advance(done: float, what: str) -> None:
                print(what, file=sys.stderr)

            settings = ProfileSettings(max(sizes), seconds, evict_bytes=0)
            times = measure_cuts(candidate, settings, log, advance, folder, shares, sizes)
            for share in shares:
                opened = cut(tables, share, folder)
                points = tuple(p for p in times.points if p.memory_bytes == opened.memory)
                found[share] = MeasuredCut(opened.opened, points)
    return found


def compared(candidate: Candidate, cuts: dict[float, MeasuredCut], on: Machine) -> dict[str, Any]:
    """Fits the cost to the profile's cuts, and predicts the others."""
    tables = stored_tables(candidate.bundle)
    cost = fit(tables, [cuts[share] for share in SHARES])
    assert on.disk_latency_s is not None
    assert on.disk_bandwidth is not None
    a_read = on.disk_latency_s + PAGE / on.disk_bandwidth
    rows = []
    for share in (*SHARES, *UNSEEN_SHARES):
        for point in cuts[share].points:
            said = predicted(cost, tables, cuts[share], point)
            reads = batch_reads(tables, cuts[share].opened, point.lookups, cost.cached)
            rows.append(
                {
                    "share": share,
                    "fitted": share in SHARES,
                    **point.model_dump(exclude={"memory_bytes", "near_rows"}),
                    "predicted_s": said,
                    "predicted_reads": reads.reads,
                    "error": said / point.seconds - 1,
                    "serial_s": _serial(point, a_read),
                }
            )
    unseen = [r for r in rows if not r["fitted"]]
    return {
        "cost": cost.model_dump(),
        "median_error": median(abs(r["error"]) for r in unseen),
        "median_error_of_reads": median(
            abs(r["predicted_reads"] / r["reads"] - 1) for r in unseen if r["reads"] > 1
        ),
        "median_serial_ratio": median(r["serial_s"] / r["seconds"] for r in unseen),
        "points": rows,
    }


def _serial(point: CutPoint, a_read: float) -> float:
    return point.memory_s + point.below * a_read


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/cut-times"), help="of models and files; a real disk"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="measured for each cut")
    parser.add_argument("--only", default="", help="models whose name has this; others stay in --json")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    on = discover(args.folder).machine
    found: dict[str, Any] = {}
    if args.only and args.json and args.json.exists():
        found = json.loads(args.json.read_text())["models"]
    for name in MODELS:
        if args.only not in name:
            continue
        candidate = candidate_of(name, args.folder, on)
        found[name] = compared(candidate, measured(candidate, args.seconds, args.folder), on)
        print(_table(name, found[name]))
    if args.json:
        head = {
            "machine": machine(),
            "disk_latency_s": on.disk_latency_s,
            "disk_bandwidth": on.disk_bandwidth,
        }
        save(args.json, head | {"models": found})


def _table(name: str, result: dict[str, Any]) -> str:
    lines = [
        f"\n{name}: median error {result['median_error']:.1%}, of reads "
        f"{result['median_error_of_reads']:.1%}, serial / measured {result['median_serial_ratio']:.1f}",
        " ".join(f"{k} {v:.3g}" for k, v in result["cost"].items()),
    ]
    for r in result["points"]:
        kind = f"{'fit' if r['fitted'] else '':4}{'ahead' if r['ahead'] else 'wait':5}"
        lines.append(
            f"{kind} {r['share']:6.3f} {r['rows']:5d} "
            f"memory {1e3 * r['memory_s']:8.3f}  took {1e3 * r['seconds']:8.3f}  predicted "
            f"{1e3 * r['predicted_s']:8.3f} ({r['error']:+.2f})  serial {1e3 * r['serial_s']:9.3f} ms  "
            f"reads {r['reads']:7.1f} ({r['predicted_reads']:7.1f})  {r['samples']} batches"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
