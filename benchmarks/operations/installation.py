"""Measures installations of Polyrec: their size, and the time until commands answer and a server is ready.

Takes virtual environments with Polyrec installed, and a bundle; prints the table of docs/dependencies.md.

    python3 -m venv /tmp/base && /tmp/base/bin/pip install --constraint constraints.txt .
    python benchmarks/operations/installation.py /tmp/base --bundle runs/demo/table
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

REPEATS = 9
COUNT = """
from importlib.metadata import distributions
import os
found = {d.name.lower(): d for d in distributions()}
for name in ("pip", "setuptools"):
    found.pop(name, None)
files = [os.fspath(f.locate()) for d in found.values() for f in d.files or []]
print(len(found), sum(os.path.getsize(f) for f in files if os.path.isfile(f)) / 1e6)
"""
"""Prints the number of packages, and the megabytes of their files, without those of every environment."""
SERVED = "import polyrec.server.app.run"


def clean() -> dict[str, str]:
    """Returns the environment without variables that add other packages."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("POLYREC_")}


def seconds(command: Sequence[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=clean(), cwd="/")
    return time.perf_counter() - begin


def seconds_to_ready(programs: Path, bundle: Path) -> float:
    """Returns the seconds from the start of `polyrec serve` until it reports that it is ready."""
    begin = time.perf_counter()
    command = [str(programs / "polyrec"), "serve", "--bundle", str(bundle), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean(), cwd="/") as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        passed = time.perf_counter() - begin
        assert ready["url"]
        server.terminate()
    return passed


def imports(programs: Path) -> tuple[int, float]:
    """Returns the number of modules that a server imports and their ms, by `python -X importtime`."""
    command = [str(programs / "python"), "-X", "importtime", "-c", SERVED]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, env=clean(), cwd="/")
    own = [int(us) for us in re.findall(r"^import time:\s+(\d+) \|", shown.stderr, re.MULTILINE)]
    return len(own), sum(own) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environments", type=Path, nargs="+", help="folders of virtual environments")
    parser.add_argument("--bundle", type=Path, required=True)
    args = parser.parse_args()
    print(
        "| environment | packages | MB | `--version` ms | `--help` ms | imports of a server, ms | ready, s |"
    )
    print("|---|---|---|---|---|---|---|")
    for environment in args.environments:
        programs = environment / "bin"
        counted = subprocess.run(
            [programs / "python", "-c", COUNT], check=True, capture_output=True, env=clean()
        )
        packages, megabytes = counted.stdout.split()
        times = {
            flag: 1e3 * statistics.median(seconds([str(programs / "polyrec"), flag]) for _ in range(REPEATS))
            for flag in ("--version", "--help")
        }
        modules, ms = min((imports(programs) for _ in range(REPEATS)), key=lambda found: found[1])
        ready = statistics.median(seconds_to_ready(programs, args.bundle.resolve()) for _ in range(REPEATS))
        print(
            f"| {environment.name} | {int(packages)} | {float(megabytes):,.0f} | {times['--version']:.0f} | "
            f"{times['--help']:.0f} | {ms:.0f} ({modules:,} modules) | {ready:.2f} |"
        )


if __name__ == "__main__":
    main()
