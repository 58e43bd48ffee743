"""Measures each runtime dependency: its size on disk and the time to import it.

Prints a table for docs/dependencies.md with one line per dependency of the installed distribution `polyrec`:
its own files, the files of packages that only it needs, and the minimum of five imports, each in a fresh
interpreter with a warm file cache. The last line is for all of them together.

    .venv/bin/python benchmarks/operations/dependencies.py            # what serving needs
    .venv/bin/python benchmarks/operations/dependencies.py otel       # what the image has
    .venv/bin/python benchmarks/operations/dependencies.py plan load  # and these extras
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IMPORTED_AS = {"onnxruntime-gpu": "onnxruntime", "prometheus-client": "prometheus_client", "pyyaml": "yaml"}
IMPORTED_AS |= {"pyarrow": "pyarrow.parquet", "safetensors": "safetensors.numpy"}
REPEATS = 5
TIMED_IMPORT = "import time; a = time.perf_counter(); import {0}; print(time.perf_counter() - a)"


def requirements(package: Distribution, extras: set[str]) -> list[Requirement]:
    """Returns the requirements of a package on this machine, with the given extras."""
    parsed = [Requirement(line) for line in package.requires or []]
    wanted = [{"extra": extra} for extra in ("", *extras)]
    return [r for r in parsed if not r.marker or any(r.marker.evaluate(w) for w in wanted)]


def closure(requirement: Requirement) -> set[str]:
    """Returns the canonical names of all packages that a requirement installs, including itself."""
    found: set[tuple[str, frozenset[str]]] = set()
    ahead = [requirement]
    while ahead:
        r = ahead.pop()
        package = (canonicalize_name(r.name), frozenset(r.extras))
        if package not in found:
            found.add(package)
            ahead += requirements(distribution(r.name), r.extras)
    return {name for name, _ in found}


def megabytes(name: str) -> float:
    files = distribution(name).files or []
    paths = [os.fspath(file.locate()) for file in files]
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path)) / 1e6


def import_ms(name: str) -> float:
    """Returns the minimum time of several imports in fresh interpreters, in ms."""
    program = TIMED_IMPORT.format(IMPORTED_AS.get(name, name))
    runs = (
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        for _ in range(REPEATS)
    )
    return 1e3 * min(float(run.stdout.splitlines()[-1]) for run in runs)


def main() -> None:
    direct = requirements(distribution("polyrec"), set(sys.argv[1:]))
    closures = {canonicalize_name(r.name): closure(r) for r in direct}
    print("| dependency | own MB | brings alone | MB | import ms |")
    print("|---|---|---|---|---|")
    for name, own in closures.items():
        others = set().union(*(c for other, c in closures.items() if other != name))
        alone = own - others - {name}
        brought = sum(map(megabytes, alone))
        release = distribution(name).version.partition("+")[0]
        sizes = f"{megabytes(name):.1f} | {len(alone)} | {brought:.1f}"
        print(f"| {name} {release} | {sizes} | {import_ms(name):.0f} |")
    together = set().union(*closures.values())
    print(f"\n{len(together)} packages, {sum(map(megabytes, together)):.0f} MB together")


if __name__ == "__main__":
    main()
