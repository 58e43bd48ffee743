"""Repeats MP-Rec's evaluation (ASPLOS'23) in the simulator: correct predictions/s by SLA, path and machine.

    python -m benchmarks.routing.mprec     (writes docs/results/mprec.md; some minutes on one core)

Simulates 10,000 Poisson queries with lognormal sizes on a CPU with a GPU, with a TPU v3 board, and with an
IPU-M2000, with table, select, DHE and hybrid of the paper's two models. `page.py` lists the assumptions and
the paper's figures for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import process_time

from benchmarks.command import command_parser, save, timestamp
from benchmarks.routing.mprec.evaluation import run, variations
from benchmarks.routing.mprec.page import write
from benchmarks.routing.mprec.paths import Assumptions
from benchmarks.routing.mprec_machines import MODELS
from polyrec.loadtest.machine import processor
from polyrec.report.page import require_matplotlib


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), metavar="DIR", help="for mprec.md")
    parser.add_argument("--quick", action="store_true", help="one model, SLA and load, few queries: a trial")
    args = parser.parse_args(argv)
    require_matplotlib()
    if args.quick:
        found = run(MODELS[:1], (10.0,), (0.5,), variations(Assumptions())[:1], queries=200, few=50)
    else:
        found = run()
    made = timestamp()
    found |= {"machine": processor(), "made": made, "cpu_s": process_time()}
    save(args.out / "mprec.json", found)
    print(write(found, args.out))


if __name__ == "__main__":
    main()
