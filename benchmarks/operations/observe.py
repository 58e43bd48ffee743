"""`make observe`: a server, a Prometheus that scrapes it, and a day's load in a minute; then both stay up.

Serves a plan, by default that of `polyrec demo`, which is run first if necessary. The load (`polyrec load`)
varies like a day, from 0.2 to 1.8 times its mean rate. Prints the addresses to look at; Ctrl-C ends all.

    python -m benchmarks.operations.observe [--plan FILE] [--rate 100]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.command import command_parser
from benchmarks.operations.prometheus import HOW, PROGRAM, prometheus
from polyrec.models.errors import PolyrecError
from polyrec.planner.plan import load_plan
from polyrec.server.child import start

DEMO = Path("runs/demo/plan.json")
FACTOR = 5.0
SCRAPED_EVERY_S = 1
POLYREC = (sys.executable, "-m", "polyrec")


def main() -> int:
    """Returns 0 after Ctrl-C, or with --once after the load; 2 with a one-line message for a mistake."""
    parser = command_parser(__doc__)
    parser.add_argument("--plan", type=Path, help=f"what to serve ({DEMO})")
    parser.add_argument("--rate", type=float, default=100.0, help="mean requests a second (100)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load: one day (60)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--once", action="store_true", help="end after the load")
    args = parser.parse_args()
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
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    server = stack.enter_context(start({"plan": plan_file, "port": args.port}))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"status page       {server.url}/")
    print(f"metrics           {server.url}/metrics")
    if PROGRAM is None:
        print(f"no Prometheus on this machine ({HOW}); the status page does without")
    else:
        # every second: a day is a minute here
        prom = stack.enter_context(
            prometheus([urlsplit(server.url).netloc], f"{SCRAPED_EVERY_S}s", args.port + 1090)
        )
        print(
            f"Prometheus        {prom.url}/graph?g0.expr=polyrec:requests:rate1m&g0.tab=0&g0.range_input=5m"
        )
        print(f"alerts            {prom.url}/alerts")
    print("Grafana           docker compose -f deploy/compose.yaml up (deploy/grafana has its dashboards)")
    traffic = f"rate={args.rate:g},arrivals=diurnal,factor={FACTOR:g},period_s={args.seconds:g}"
    print(f"load              {traffic}", flush=True)
    # the load takes a core of a small machine: its own lag is no reason to end
    subprocess.run(
        [
            *(*POLYREC, "load", server.url, "--bundle", str(bundle), "--traffic", traffic),
            *("--seconds", f"{args.seconds:g}", "--warmup", "0", "--budget-ms", "50", "--max-lag-ms", "50"),
        ]
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
        demo = [*POLYREC, "demo", "--once", "--port", "0", "--json"]
        if subprocess.run(demo, stdout=subprocess.DEVNULL).returncode:
            raise RuntimeError("polyrec demo failed; give a plan: --plan FILE")
    return DEMO


if __name__ == "__main__":
    sys.exit(main())
