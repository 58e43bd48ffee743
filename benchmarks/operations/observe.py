"""`make observe`: a server, a Prometheus that scrapes it, and a day's load in a minute; then both stay up.

Serves a plan, by default that of `polyrec demo`, which is run first if necessary. The load varies like a day,
from 0.2 to 1.8 times its mean rate. Without --rate, the peak uses most of the server's lanes, or as much as
one driver on a small machine can send. Prints the addresses to look at; Ctrl-C ends everything.

    python -m benchmarks.operations.observe [--plan FILE] [--rate 100] [--budget-ms 50]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.command import command_parser
from benchmarks.operations.prometheus import HOW, PROGRAM, prometheus
from polyrec.models.errors import PolyrecError
from polyrec.planner.plan import load_plan
from polyrec.server.child import start

DEMO = Path("runs/demo/plan.json")
FACTOR = 5.0
MEAN_ROWS = 23
PEAK = 2 - 1 / FACTOR
MAX_RATE = 300.0
"""Maximum rate; above it, the driver limits the result on a small machine."""
SHARE_OF_CAPACITY = 0.9
SCRAPED_EVERY_S = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 after Ctrl-C, or with --once after the load; 2 with a one-line message for a mistake."""
    parser = command_parser(__doc__)
    parser.add_argument("--plan", type=Path, help=f"what to serve ({DEMO})")
    parser.add_argument("--data", help="rows of requests (default: synthetic rows)")
    parser.add_argument("--rate", type=float, help="mean requests a second (default: by the capacity)")
    parser.add_argument("--budget-ms", type=float, default=50.0, help="of each request (50)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load: one day (60)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--prometheus-port", type=int, default=9090)
    parser.add_argument("--once", action="store_true", help="end after the load")
    args = parser.parse_args(argv)
    try:
        with ExitStack() as stack:
            _observe(args, stack)
    except (PolyrecError, RuntimeError) as e:
        print(f"observe: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nended")
    return 0


def _observe(args: argparse.Namespace, stack: ExitStack) -> None:
    plan_file = args.plan or _demo()
    # looked at now: a mistake in it is told before anything starts
    bundle = load_plan(plan_file).paths[0].bundle
    environ = os.environ
    environ.setdefault("OMP_NUM_THREADS", "1")
    server = stack.enter_context(start({"plan": plan_file, "port": args.port}))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"status page       {server.url}/")
    print(f"metrics           {server.url}/metrics")
    if PROGRAM is None:
        print(f"no Prometheus on this machine ({HOW}); the status page does without")
    else:
        # every second: a day is a minute here
        prom = stack.enter_context(
            prometheus([urlsplit(server.url).netloc], f"{SCRAPED_EVERY_S}s", args.prometheus_port)
        )
        print(
            f"Prometheus        {prom.url}/graph?g0.expr=polyrec:requests:rate1m&g0.tab=0&g0.range_input=5m"
        )
        print(f"alerts            {prom.url}/alerts")
    print("Grafana           docker compose -f deploy/compose.yaml up (deploy/grafana has its dashboards)")
    rate = args.rate or _rate(server.url)
    print(
        f"load              {rate:.0f} requests/s on average, {PEAK * rate:.0f} at the peak,"
        f" {args.seconds:g} s",
        flush=True,
    )
    traffic = f"rate={rate:g},arrivals=diurnal,factor={FACTOR:g},period_s={args.seconds:g}"
    command = [
        *(sys.executable, "-m", "polyrec", "load", server.url, "--bundle", str(bundle)),
        *("--traffic", traffic, "--seconds", f"{args.seconds:g}", "--warmup", "0"),
        *("--budget-ms", f"{args.budget_ms:g}", "--max-lag-ms", "50", "--json"),
        *(["--data", args.data] if args.data else []),
    ]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(_end, load)
    told, _ = load.communicate()
    if load.returncode == 0:
        result = json.loads(told)
        print(
            f"answered in time  {result['ok']:.2%} of {result['requests']} requests, "
            f"p99 {result['p99_ms']:.1f} ms, {result['degraded']:.1%} degraded; paths {result['mix']}"
        )
    if PROGRAM is not None:
        time.sleep(2 * SCRAPED_EVERY_S)  # the last answers are scraped
        found = prom.query("sum by (outcome) (polyrec_requests_total) > 0")
        print("Prometheus says   " + ", ".join(f"{s['metric']['outcome']} {s['value'][1]}" for s in found))
    if args.once:
        return
    print("It stays up until Ctrl-C.", flush=True)
    while server.process.poll() is None:
        time.sleep(0.5)


def _demo() -> Path:
    """Returns the demo's plan; makes it if it does not exist."""
    if not DEMO.is_file():
        print("no plan yet: polyrec demo makes one (a minute or two)", flush=True)
        made = subprocess.run(
            [sys.executable, "-m", "polyrec", "demo", "--once", "--port", "0", "--json"],
            stdout=subprocess.DEVNULL,
        )
        if made.returncode:
            raise RuntimeError("polyrec demo failed; give a plan: --plan FILE")
    return DEMO


def _rate(url: str) -> float:
    """Returns the mean requests/s whose daily peak uses most of the lanes' capacity."""
    with urllib.request.urlopen(f"{url}/v1/status", timeout=10) as answer:
        told: dict[str, Any] = json.load(answer)
    rows_s = told["serving"]["routing"]["total_rate"]
    return float(min(MAX_RATE, SHARE_OF_CAPACITY * rows_s / MEAN_ROWS / PEAK))


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
