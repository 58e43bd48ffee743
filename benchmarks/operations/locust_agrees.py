"""Does Locust see what the server says it did? A spike of load, and both tables side by side.

    python benchmarks/operations/locust_agrees.py --bundle runs/representations/hybrid --data clicks.parquet

The lane has one core; Locust and the server's front, which have little to do, share the other. After a spike
of load, Locust's own table is compared with polyrec_request_seconds: counts must be equal, p50 and
p99 within 5%. What a client sees on top (its own event loop, the network) is about a millisecond, and Locust
rounds to two digits, so the queries are made large enough for that to be small. The bundle runs in a lane of
its own process: an inline lane keeps the event loop from reading requests while it executes, and what waits
unread in a socket is in the client's time but not in the server's. A user sends its next request only when
it has its answer, and its time runs from when it meant to: many slow users, or that wait is in Locust's p99.
Exit status 1 if they disagree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

from locust.stats import calculate_response_time_percentile

from polyrec.loadtest.drivers.server_pages import request_buckets
from polyrec.loadtest.machine import machine
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.plan import Limits, Plan, PlannedLane, PlannedPath, save_plan
from polyrec.server.child import start

ROOT = Path(__file__).parents[2]
CORES = sorted(os.sched_getaffinity(0))
TOLERANCE = 0.05


def plan_of(bundle: Path, lane: str) -> Plan:
    cores = () if lane == "inline" else (CORES[0],)
    name = f"{load_bundle(bundle).name}@cpu"
    return Plan(
        paths=(PlannedPath(name=name, bundle=bundle.resolve(), runtime="onnx"),),
        lanes=(PlannedLane(name="cpu", kind=lane, cores=cores),),  # type: ignore[arg-type]
        default_budget_ms=60_000,
        # Locust counts refusals as answers, and fast ones
        limits=Limits(max_queued_rows=1_000_000),
    )


def locust(url: str, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Locust's own figures of the run, in milliseconds."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LOADTEST_", "LOCUST_"))}
    environment |= {"LOADTEST_BUNDLE": str(args.bundle), "LOADTEST_CANDIDATES": str(args.candidates)}
    if args.data:
        environment["LOADTEST_DATA"] = str(args.data)
    command = [
        *("taskset", "-c", str(CORES[-1]), sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py"),
        *("--headless", "--shape", "spike", "-u", str(args.users), "-t", f"{args.seconds:g}s"),
        *("--stop-timeout", "10", "--only-summary", "--loglevel", "WARNING", "--host", url),
        *("--json-file", str(folder / "run"), "--exit-code-on-error", "0"),
        *("--rate", str(args.rate), "Infer"),
    ]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    # not the CSV: Locust writes that every second, and what comes last may be missing
    (entry,) = json.loads((folder / "run.json").read_text())
    times = {int(ms): n for ms, n in entry["response_times"].items()}
    count = entry["num_requests"]
    percentiles = (calculate_response_time_percentile(times, count, share) for share in (0.5, 0.99))
    p50_ms, p99_ms = (float(p) for p in percentiles)
    return {"count": count, "failures": entry["num_failures"], "p50_ms": p50_ms, "p99_ms": p99_ms}


def main() -> int:
    parser = argparse.ArgumentParser(description="compare Locust's table with the server's histograms")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="rows to ask about (default: generated)")
    parser.add_argument("--lane", choices=["inline", "thread", "process"], default="process")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--users", type=int, default=200, help="at the peak; a fifth of it else")
    parser.add_argument("--rate", type=float, default=0.1, help="requests/s of each user")
    parser.add_argument("--candidates", type=int, default=3000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.bundle = args.bundle.resolve()
    args.data = args.data and args.data.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_plan(plan_of(args.bundle, args.lane), folder / "plan.json")
        with start({"plan": folder / "plan.json", "drain_grace_s": 0}, core=CORES[-1]) as server:
            seen = locust(server.url, args, folder)
            buckets = request_buckets(server.url, endpoint="infer")
    served = {
        "count": float(buckets.total),
        "p50_ms": 1e3 * buckets.quantile(0.5),
        "p99_ms": 1e3 * buckets.quantile(0.99),
    }
    apart = {q: seen[q] / served[q] - 1 for q in ("p50_ms", "p99_ms")}
    agree = seen["count"] == served["count"] and all(abs(a) <= TOLERANCE for a in apart.values())
    result = {"locust": seen, "server": served, "apart": apart, "agree": agree, "machine": machine()}
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{'':8}{'count':>10}{'p50 ms':>10}{'p99 ms':>10}")
        for who, row in (("locust", seen), ("server", served)):
            print(f"{who:8}{row['count']:>10.0f}{row['p50_ms']:>10.2f}{row['p99_ms']:>10.2f}")
        print(f"{'apart':8}{'':>10}{apart['p50_ms']:>+10.1%}{apart['p99_ms']:>+10.1%}")
        print("they agree" if agree else "THEY DISAGREE")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
