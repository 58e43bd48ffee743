"""Compares the speed of this revision with that of another checkout, in turns.

    git worktree add --detach /tmp/before 63bcbdf
    python -m benchmarks.http.revisions /tmp/before --bundle runs/table --data clicks.parquet --json FILE

A turn starts one server per revision on one core, and loads them alternately from another core over 16
connections in a closed loop: ranking requests of 23 candidates, then the same with a latency budget that
cannot be met. It also times `polyrec --help`. Later runs add their turns to FILE. Create the bundle with the
older revision.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.command import CLIENT_CORE, ROOT, SERVER_CORE, command_parser, free_port, save, saved
from benchmarks.paired import ratio
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import BUDGET
from polyrec.loadtest.machine import core_seconds, machine
from polyrec.loadtest.traffic.queries import Queries, read_rows
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.models.bundle.bundle import load_bundle
from polyrec.report.text import markdown_table

MAIN = """
try: from polyrec.cli.main import main
except ImportError: from polyrec.cli import main
raise SystemExit(main())
"""
"""The command `polyrec` in revisions with one package, and in earlier ones."""
CONNECTIONS = 16
CANDIDATES = 23
WARM_UP_S = 0.5
DIFFERENT_REQUESTS = 4096
UNMEETABLE_MS = "0.05"
SLICES = 6
FIGURES = {
    "answers": "answers of 23 candidates, requests/s",
    "answers_us": "the same, server's processor time, us",
    "rejections": "budget of 0.05 ms, rejected or expired, requests/s",
    "rejections_us": "the same, server's processor time, us",
    "help_ms": "`polyrec --help`, ms",
}
"""Row of the table by name in FILE. For times, smaller is better."""
Figures = dict[str, float]


class Child(NamedTuple):
    """A server in a child process."""

    pid: int
    port: int


def throughput(
    child: Child, requests: Sequence[bytes], statuses: frozenset[int], seconds: float
) -> tuple[float, float]:
    """Returns a closed loop's answers per second, and the server's CPU time per answer in microseconds."""
    before_s, begin = core_seconds(child.pid)[0], time.perf_counter()
    answers = closed_loop(f"http://127.0.0.1:{child.port}", requests, CONNECTIONS, seconds, statuses)
    took_s = time.perf_counter() - begin
    return answers / took_s, 1e6 * (core_seconds(child.pid)[0] - before_s) / answers


def polyrec(tree: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Returns the command line and environment to run a checkout's `polyrec`."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    return [sys.executable, "-c", MAIN, *arguments], environment


def help_ms(tree: Path) -> float:
    """Returns the time of `polyrec --help`, in milliseconds."""
    line, environment = polyrec(tree, "--help")
    begin = time.perf_counter()
    subprocess.run(line, env=environment, cwd=tree, stdout=subprocess.DEVNULL, check=True)
    return 1e3 * (time.perf_counter() - begin)


@contextmanager
def server(tree: Path, bundle: Path) -> Iterator[Child]:
    """Yields a ready server of a checkout, pinned to `SERVER_CORE`."""
    port = free_port()
    options = ["--bundle", str(bundle), "--port", str(port)]
    options += ["--drain-grace-s", "0", "--default-budget-ms", "60000"]
    line, environment = polyrec(tree, "serve", *options)
    child = subprocess.Popen(
        ["taskset", "-c", str(SERVER_CORE), *line],
        env=environment,
        cwd=tree,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_until_ready(child, f"http://127.0.0.1:{port}/readyz")
        yield Child(child.pid, port)
    finally:
        child.terminate()
        child.communicate(timeout=30)


def _wait_until_ready(child: subprocess.Popen[str], url: str) -> None:
    while child.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise RuntimeError(child.communicate()[1][-2000:])


def turn(
    trees: Mapping[str, Path], bundle: Path, bodies: Sequence[bytes], seconds: float
) -> dict[str, Figures]:
    """Returns the figures of all checkouts, see `FIGURES`: medians of `SLICES` alternations."""
    target = Target(f"http://localhost{RANK}", {"Content-Type": "application/json"})
    answered = [target.request(body) for body in bodies]
    hurried = [target.request(body, {BUDGET: UNMEETABLE_MS}) for body in bodies]
    measured: dict[str, dict[str, list[float]]] = {name: {key: [] for key in FIGURES} for name in trees}
    workloads = {"answers": (answered, frozenset({200})), "rejections": (hurried, frozenset({429, 504}))}
    with ExitStack() as stack:
        children = {name: stack.enter_context(server(tree, bundle)) for name, tree in trees.items()}
        for child in children.values():
            for workload in workloads.values():
                throughput(child, *workload, WARM_UP_S)
        for i in range(SLICES):
            for name in list(trees)[:: 1 if i % 2 else -1]:
                found = measured[name]
                for key, workload in workloads.items():
                    rate, processor_us = throughput(children[name], *workload, seconds / SLICES)
                    found[key].append(rate)
                    found[f"{key}_us"].append(processor_us)
                found["help_ms"].append(help_ms(trees[name]))
    return {name: {key: median(values) for key, values in found.items()} for name, found in measured.items()}


def table(before: Sequence[Figures], after: Sequence[Figures]) -> str:
    """Returns medians, and mean ratios with their 95% interval of paired logarithms; above 1: faster now."""
    rows = []
    for key, what in FIGURES.items():
        old, new = [f[key] for f in before], [f[key] for f in after]
        mean, low, high = ratio(old, new) if key.endswith(("_us", "_ms")) else ratio(new, old)
        compared = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
        rows.append([what, f"{median(old):,.0f}", f"{median(new):,.0f}", compared])
    return "\n".join(markdown_table(["", "before", "after", "ratio"], rows))


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("before", type=Path, help="checkout of the other revision")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="Parquet file whose rows are asked about")
    parser.add_argument("--turns", type=int, default=20, help="turns of each revision (20)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each workload in a turn (3)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="turns so far, to which those of this run are added"
    )
    args = parser.parse_args(argv)
    trees = {"before": args.before.resolve(), "after": ROOT}
    found: dict[str, list[Figures]] = saved(args.json).get("turns", {name: [] for name in trees})
    os.sched_setaffinity(0, {CLIENT_CORE})
    bundle = load_bundle(args.bundle)
    schema, random = bundle.manifest.schema_, np.random.default_rng(0)
    queries = Queries(read_rows(args.data, schema, 200_000), schema, bundle.encoder)
    bodies = [queries.rank(queries.sample(CANDIDATES, random))[0] for _ in range(DIFFERENT_REQUESTS)]
    for _ in range(args.turns):
        for name, figures in turn(trees, args.bundle.resolve(), bodies, args.seconds).items():
            found[name].append(figures)
        save(args.json, {"machine": machine(), "turns": found})
    print(
        f"{len(found['after'])} turns, {machine()['processor']}\n\n{table(found['before'], found['after'])}"
    )


if __name__ == "__main__":
    main()
