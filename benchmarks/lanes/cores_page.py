"""Writes docs/results/cores.md from the figures of benchmarks/lanes/cores.py.

python -m benchmarks.lanes.cores_page docs/results/cores.json docs/results/cores.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyrec.report.text import markdown_table

MIB = 2**20
INTRODUCTION = """# Results: cores and memory

On two cores, two server processes answer 1.7 to 1.8 times the requests of one core over HTTP, and one server
with two process lanes 1.2 to 1.4 times. The rows are in memory once either way; each further process adds
200 to 300 MiB. How lanes and processes work: [lanes](../lanes.md).

Figures are medians over turns in which the cases alternate; ratios are within a turn. Every answer of queries
offered in the process is compared with a float64 reference. Method: the docstring of
`benchmarks/lanes/cores.py`. This page is written by
`python -m benchmarks.lanes.cores_page docs/results/cores.json docs/results/cores.md`.
"""


LANES = "2 process lanes"


def cap(cases: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the maximum rate of one server with process lanes, regardless of their number of cores."""
    fronts = [f["front_ms"] for name, f in cases.items() if name.endswith(LANES)]
    return [
        "",
        f"With process lanes on any number of cores, at most {1e3 / fronts[0]:,.0f} requests/s are possible, "
        f"because the server's own process takes {fronts[0]:.3f} ms of its core for each. Several servers "
        "share only memory bandwidth.",
    ]


def _cells(figures: Mapping[str, float], columns: Mapping[str, tuple[str, str]]) -> list[str]:
    """Formats the figures of one case. columns: by title, the key and format of each."""
    return [format(figures[key], form) for key, form in columns.values()]


def offered_table(cases: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Formats queries offered in the process."""
    columns = {
        "requests/s": ("requests_per_s", ",.0f"),
        "times": ("times", ".2f"),
        "busy cores": ("busy_cores", ".2f"),
        "CPU ms: server": ("front_ms", ".3f"),
        "its lanes": ("lanes_ms", ".3f"),
        "rows of a batch": ("batch_rows", ".0f"),
        "driver": ("driver_share", ".1%"),
    }
    rows = [[name, *_cells(f, columns)] for name, f in cases.items()]
    return markdown_table(["case", *columns], rows)


def served_table(cases: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Formats servers over HTTP.

    The last column is the rate with the same CPU time if the load generator were elsewhere; for process lanes
    at most what the server's own process allows.
    """
    columns = {
        "requests/s": ("requests_per_s", ",.0f"),
        "times": ("times", ".2f"),
        "CPU ms a request": ("server_ms", ".3f"),
        "server's cores": ("server_cores", ".2f"),
        "load's cores": ("load_cores", ".2f"),
        "least busy process": ("least_share", ".0%"),
    }
    rows = []
    first = next(iter(cases.values()))
    for name, f in cases.items():
        cores = 1 if f is first else 2
        paper = cores * first["server_ms"] / f["server_ms"]
        if name.endswith(LANES):
            paper = min(paper, first["server_ms"] / f["front_ms"])
        rows.append([name, *_cells(f, columns), f"{paper:.2f}"])
    return markdown_table(["case", *columns, "possible, times"], rows)


def memory_table(found: Mapping[str, Any]) -> list[str]:
    """Formats the PSS of servers, in MiB."""
    rows = []
    for name, f in found["cases"].items():
        ready, loaded = ({k: v / MIB for k, v in f[state].items()} for state in ("ready", "loaded"))
        sizes = [ready[k] for k in ("total", "rows", "files", "private")]
        sizes += [loaded[k] for k in ("total", "rows", "private")]
        rows.append([name, str(f["processes"]), *(f"{mib:,.0f}" for mib in sizes)])
    head = ["server", "processes", "ready: all", "rows", "other files", "private"]
    return [
        f"PSS in MiB. The rows are {found['rows_bytes'] / MIB:,.0f} MiB; only touched pages count.",
        "",
        *markdown_table([*head, "loaded: all", "rows", "private"], rows),
    ]


def origin(found: Mapping[str, Any]) -> str:
    """Returns command, date and machine of a part."""
    about = found["machine"]
    return (
        f"`{found['command']}`, {found['date']}, revision {found['revision']}, "
        f"{found['outstanding']} queries outstanding; {about['processor']}, {about['cores']}, "
        f"load average {about['load average']}, "
        f"{about['scheduling']}, Python {about['python']}."
    )


def section(key: str, found: Mapping[str, Any]) -> list[str]:
    """Returns the section of one part and request size."""
    part, model, rows = key.split("/")
    if part == "offered":
        lines = [f"## Queries offered in the process: {model}, {rows} rows", ""]
        lines += [*offered_table(found["cases"]), *cap(found["cases"])]
    elif part == "served":
        lines = [f"## Served over HTTP: {model}, {rows} rows", ""]
        lines += [*served_table(found["cases"]), *cap(found["cases"])]
    else:
        lines = [f"## Memory: {model}", "", *memory_table(found)]
    return [*lines, "", origin(found), ""]


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the whole page. results: `part/model/rows` -> figures."""
    lines = [INTRODUCTION]
    for key, found in results.items():
        lines += section(key, found)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(page(json.loads(source.read_text())))
