"""Writes docs/results/phases.md from the figures of `python -m benchmarks.peers.phases`.

    python -m benchmarks.peers.phases_page docs/results/phases.json docs/results/phases.md

A table per case shows each phase's time in revision bd14473, in a prototype of a few hundred lines (both
known only for independent rows in fp32), and in the measured code, alone and in the server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyrec.report.text import markdown_table

PHASES = ("parse", "encode", "embed", "dense", "answer")
EARLIER = {
    "23 rows": {
        "parse": ("0.10-0.16", "0.023-0.043"),
        "encode": ("0.10-0.17", "0.016"),
        "embed": ("0.12-0.18", "0.016-0.027"),
        "dense": ("0.36-0.51", "0.25-0.33"),
        "answer": ("", "0.007"),
    },
    "270 rows": {
        "parse": ("1.03", "0.14-0.30"),
        "encode": ("0.43", "0.08-0.12"),
        "embed": ("0.76", "0.11-0.25"),
        "dense": ("4.0", "3.05-3.4"),
        "answer": ("", "0.04"),
    },
}
"""Milliseconds in bd14473 and in a prototype, kaggle in fp32, measured once on two cores of a Zen 5."""
FORMS = {
    "rows": "independent rows",
    "context": "one context with candidates",
    "exploded": "one context with candidates, repeated in each row",
}
INTRODUCTION = """# What each phase of a request costs

The dense net takes two thirds of a request of 23 rows and four fifths of one of 270; in the server, 0.05 to
0.18 ms more go to sockets, HTTP, routing and metrics.

Figures are milliseconds a request on one core, with inference-protocol JSON in and JSON out.

- *Alone*: the server's code phase by phase on one thread, CPU time.
- *In the server*: its metric `polyrec_phase_seconds` in a closed loop (elapsed time on a core of its own),
  divided by the requests answered. With 16 connections, waiting requests are executed as one batch.
- *Beyond the phases*: the process's CPU time less its phases: sockets, HTTP, routing, metrics.
- *bd14473* and *prototype*: an earlier revision, and prototypes of a few hundred lines, measured on another
  day on a Zen 5, so compare them roughly.
"""


def table(case: str, found: Mapping[str, Any], earlier: bool = False) -> str:
    """Returns one case as Markdown. earlier: whether to add the columns of EARLIER."""
    known = EARLIER.get(case, {}) if earlier else {}
    connections = list(found["server"])
    names = [
        *(["bd14473", "prototype"] if known else []),
        "alone",
        *(f"in the server, {c} connection{'s' if int(c) > 1 else ''}" for c in connections),
    ]
    rows = []
    for phase in PHASES:
        inside = [found["server"][c]["phases_ms"][phase] for c in connections]
        cells = [*known.get(phase, ()), *(f"{ms:.3f}" for ms in (found["phases_ms"][phase], *inside))]
        rows.append([phase, *cells])
    blank = ["", ""] if known else []
    sums = [found["sum_ms"], *(sum(found["server"][c]["phases_ms"].values()) for c in connections)]
    rest = [f"{found['server'][c]['beyond_ms']:.3f}" for c in connections]
    rates = [f"{found['server'][c]['requests_per_s']:,.0f}" for c in connections]
    rows.append(["sum", *blank, *(f"{ms:.3f}" for ms in sums)])
    if connections:
        rows += [["beyond the phases", *blank, "", *rest], ["requests/s", *blank, "", *rates]]
    return "\n".join(markdown_table([f"{case}, ms", *names], rows))


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the whole page. results: `model/runtime/precision` -> the result of one command."""
    parts = [INTRODUCTION]
    for key, result in results.items():
        model, runtime, precision = key.split("/")
        for case, found in result["cases"].items():
            rows, form = case.split()
            parts.append(f"## {model}, {precision} ({runtime}), {rows} rows: {FORMS[form]}\n")
            parts.append(table(case, found, (model, precision) == ("kaggle", "fp32")) + "\n")
        parts.append(
            f"`{result['command']}`, {result['date']}, {result['turns']} turns; {result['processor']}.\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(page(json.loads(source.read_text())))
