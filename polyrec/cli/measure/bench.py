"""`polyrec bench`: compares a plan's routing policies on a live server under open-loop load."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from polyrec.loadtest.arguments import non_negative_int, positive_float

if TYPE_CHECKING:
    from collections.abc import Callable

    from polyrec.loadtest.comparison.comparison import Conditions, PolicyComparison
    from polyrec.planner.plan import Plan

EXAMPLE = "polyrec bench --plan plan.json --policies all --slo-ms 10 --data clicks.parquet --out runs/bench"

LADDER = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5)
STEP_TO = 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_compared(parser)
    _add_sent(parser)
    _add_runs(parser)
    _add_machine(parser)
    _add_output(parser)


def _add_compared(parser: argparse.ArgumentParser) -> None:
    compared = parser.add_argument_group("what is compared")
    compared.add_argument(
        "--plan", required=True, help="plan file; one server runs it under each policy in turn"
    )
    compared.add_argument(
        "--policies",
        default="all",
        help="all (default), static, dynamic, or a list of static:PATH, mprec, deeprecsys, priced",
    )
    compared.add_argument(
        "--slo-ms",
        type=float,
        default=10.0,
        help="latency SLO: p99 from the scheduled sending time to the answer (default 10)",
    )


def _add_sent(parser: argparse.ArgumentParser) -> None:
    sent = parser.add_argument_group("requests")
    sent.add_argument("--data", help="Parquet file or packed folder of requests (default: synthetic rows)")
    sent.add_argument(
        "--sizes",
        help="rows per request: mlperf, fixed:23, lognormal:150, heavy:150 (default: as in the data)",
    )
    sent.add_argument(
        "--seed", type=non_negative_int, default=0, help="seed of arrivals, sizes and requests (default 0)"
    )


def _add_runs(parser: argparse.ArgumentParser) -> None:
    runs = parser.add_argument_group("runs")
    runs.add_argument(
        "--rates", help="list of requests/s to measure, like 500,1000 (default: 10 to 150%% of capacity)"
    )
    runs.add_argument(
        "--seconds", type=positive_float, default=4.0, help="measured time of each run (default 4)"
    )
    runs.add_argument("--warmup", type=float, default=1.0, help="warm-up seconds before each run (default 1)")
    runs.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="runs of each policy at each rate; the median is shown (default 1)",
    )
    runs.add_argument(
        "--margin-ms",
        type=float,
        default=0.5,
        help="part of the SLO kept for the network; the rest is the requests' budget (default 0.5)",
    )
    runs.add_argument(
        "--first-rate",
        type=float,
        default=200.0,
        help="requests/s to begin the search for capacity with (default 200)",
    )
    runs.add_argument("--no-search", action="store_true", help="skip the search for capacity; needs --rates")
    runs.add_argument("--no-step", action="store_true", help="skip the run with a step of load")
    runs.add_argument(
        "--step-base",
        type=float,
        help="requests/s before and after the 5x step (default: 18%% of the best capacity)",
    )
    runs.add_argument(
        "--simulate",
        action="store_true",
        help="also simulate all rates, and compare p99 and goodput",
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--server-cores", help="processor cores of the server, like 0,1,2 (default: all but the driver's)"
    )
    machine.add_argument(
        "--client-core", type=int, help="processor core of the load driver (default: the last)"
    )
    machine.add_argument(
        "--max-lag-ms",
        type=float,
        default=2.0,
        help="maximum p99 of the driver's own lag for reliable figures (default 2)",
    )
    machine.add_argument(
        "--first",
        action="store_true",
        help="run server and driver before all others: nice -20 (needs root)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--out", help="folder for bench.html, bench.png and bench.json")
    output.add_argument("--json", action="store_true", help="print everything as JSON")


def _rates(text: str | None) -> tuple[float, ...]:
    from polyrec.loadtest.drivers.connection import LoadError

    try:
        rates = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        rates = (0.0,)
    if any(not 0 < rate < 1e6 for rate in rates):
        raise LoadError(f"--rates '{text}': give requests a second, like 100,200,400")
    return rates


def _cores(text: str | None, usable: list[int], client: int) -> set[int]:
    from polyrec.loadtest.drivers.connection import LoadError

    if text is None:
        return set(usable) - {client} or {client}
    try:
        cores = {int(part) for part in text.split(",")}
    except ValueError:
        cores = set()
    if not cores or cores - set(usable):
        raise LoadError(f"--server-cores '{text}': give some of {', '.join(map(str, usable))}")
    return cores


def run(args: argparse.Namespace) -> int:
    from contextlib import nullcontext

    from polyrec.loadtest.machine import raised_priority

    with raised_priority() if args.first else nullcontext():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    import json
    import os
    from pathlib import Path

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from polyrec.cli.progress import StatusLine
    from polyrec.loadtest.comparison.comparison import PolicyComparison
    from polyrec.loadtest.comparison.policy_server import PolicyServer, policies_of
    from polyrec.loadtest.drivers.connection import LoadError
    from polyrec.loadtest.traffic.source import open_source
    from polyrec.models.bundle.bundle import load_bundle
    from polyrec.planner.plan import load_plan
    from polyrec.report.load.policies import as_json
    from polyrec.report.page import make_folder, require_matplotlib

    plan = load_plan(args.plan)
    policies = policies_of(plan, args.policies)
    conditions = _conditions(args)
    rates = _rates(args.rates)
    if args.no_search and not rates:
        raise LoadError("--no-search needs --rates: without a search the capacity is unknown")
    cores = sorted(os.sched_getaffinity(0))
    client_core = cores[-1] if args.client_core is None else args.client_core
    server_cores = _cores(args.server_cores, cores, client_core)
    setup = _setup(args, plan, server_cores, client_core)
    source = open_source(args.data, load_bundle(plan.paths[0].bundle), args.seed)
    if args.out:
        require_matplotlib()
        make_folder(args.out)
    os.sched_setaffinity(0, {client_core})

    def write() -> Path | None:
        if not args.out:
            return None
        from polyrec.report.load.policy_page import write_comparison

        return write_comparison(
            Path(args.out), comparison, setup, f"Routing policies of {Path(args.plan).name}"
        )

    with (
        StatusLine("bench") as status,
        PolicyServer(plan, policies, server_cores, {}) as server,
    ):
        comparison = PolicyComparison(server, source, conditions, status.show)
        _compare(args, rates, comparison, plan, write)
    page = write()
    if args.json:
        print(json.dumps(as_json(comparison, setup)))
    else:
        _show(comparison)
        if page is not None:
            print(page)
    return 0


def _compare(
    args: argparse.Namespace,
    rates: tuple[float, ...],
    comparison: PolicyComparison,
    plan: Plan,
    write: Callable[[], object],
) -> None:
    """Runs all parts of the comparison. write: writes the figures so far, in case of an interrupt."""
    capacity = None
    if not args.no_search:
        capacity = comparison.find_capacities(args.first_rate)
        write()
    if args.simulate:
        comparison.calibrate(plan)
    comparison.run_ladder(rates or tuple(round((capacity or 0.0) * share, 1) for share in LADDER), write)
    if args.simulate:
        comparison.simulate(plan)
    base = args.step_base or (capacity and capacity * STEP_TO / 5)
    if base and not args.no_step:
        write()
        comparison.step(base)


def _show(comparison: PolicyComparison) -> None:
    from polyrec.report.load.policies import tables, verdict
    from polyrec.report.text import terminal

    print(f"{verdict(comparison)}\n")
    print(terminal(tables(comparison)))


def _conditions(args: argparse.Namespace) -> Conditions:
    from polyrec.loadtest.comparison.comparison import Conditions
    from polyrec.planner.traffic import parse_sizes

    return Conditions(
        slo_s=args.slo_ms / 1e3,
        margin_s=args.margin_ms / 1e3,
        seconds=args.seconds,
        warmup_s=args.warmup,
        sizes=None if args.sizes is None else parse_sizes(args.sizes),
        repeats=args.repeats,
        max_lag_s=args.max_lag_ms / 1e3,
        seed=args.seed,
    )


def _setup(args: argparse.Namespace, plan: Plan, server_cores: set[int], client_core: int) -> dict[str, str]:
    """Returns the setup that the report shows: machine, cores, versions."""
    from polyrec.loadtest.machine import machine

    return {
        "plan": f"{args.plan}: {', '.join(path.name for path in plan.paths)}",
        "lanes": ", ".join(f"{lane.name} ({lane.kind}, {lane.device})" for lane in plan.all_lanes()),
        "requests": f"{args.data or 'synthetic rows of the bundle'}; sizes {args.sizes or 'as in the data'}",
        "slo": f"{args.slo_ms:g} ms, budget sent {args.slo_ms - args.margin_ms:g} ms",
        "command": shlex.join(["polyrec", *sys.argv[1:]]),
        **machine(),
        "cores of server and driver": f"{', '.join(map(str, sorted(server_cores)))} and {client_core}",
    }
