"""Writes docs/results/peers.md from the figures of `python -m benchmarks.peers`.

    R=docs/results; python -m benchmarks.peers.page $R/peers.json [$R/peers-MACHINE.json ...] $R/peers.md

The page has a table per model, request form and size, each with the command that measured it, and a section
per further machine. If a hypervisor hides the CPU's name, its vector extensions identify it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrec.report.text import markdown_table

FORMS = {"rows": "independent rows", "context": "one context with candidates; peers get the exploded rows"}
TEXT = Path(__file__).with_name("page.md")
"""The page's text, with a place for the tables."""
HEAD = ("server", "closed loop, /s", "of the session", "alone, ms", "knee, /s", "of the best peer")


def table(model: str, form: str, rows: int, found: Mapping[str, Any], level: int = 2) -> str:
    """Returns the figures of one request size as Markdown. level: heading level."""
    servers = found["servers"]
    peers = [f["knee_requests_per_s"] for name, f in servers.items() if not name.startswith("polyrec")]
    best = max(peers, default=0.0)
    cells = []
    for name, f in servers.items():
        knee = f["knee_requests_per_s"]
        share = f"{knee / best:.2f}" if best else "-"
        closed = f["closed_requests_per_s"]
        of_session = f"{closed * rows / found['session_rows_per_s']:.0%}"
        cells.append([name, f"{closed:,.0f}", of_session, f"{f['alone_ms']:.2f}", f"{knee:,.0f}", share])
    cells.append(["session alone", f"{found['session_rows_per_s'] / rows:,.0f}", "100%", "", "", ""])
    head = f"{'#' * level} {model}, {rows} rows, p99 within {found['limit_ms']:g} ms: {FORMS[form]}"
    return "\n".join([head, "", *markdown_table(HEAD, cells)]) + "\n"


def origin(found: Mapping[str, Any]) -> str:
    """Returns command, machine, date and versions of one table."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    machine = found["machine"]
    turns = min(len(f["turns"]["knee_requests_per_s"]) for f in found["servers"].values())
    return (
        f"`{found['command']}`, {found['date']}, revision {found['revision']}, {turns} turns; "
        f"{machine['processor']}, {machine['cores']}, load average {machine['load average']}, "
        f"{machine['scheduling']}, Python {machine['python']}; {versions}.\n"
    )


def page(machines: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    """Returns the whole page. machines: `model/form/rows` -> figures of each; the first has no heading."""
    parts: list[str] = []
    for number, results in enumerate(machines):
        if number:
            about = next(iter(results.values()))["machine"]
            parts.append(f"## On {about['processor']} with {about['vectors']}\n")
        for key, found in results.items():
            model, form, rows = key.split("/")
            parts += [table(model, form, int(rows), found, 3 if number else 2), origin(found)]
    return TEXT.read_text().replace("{tables}\n", "\n".join(parts) + "\n")


if __name__ == "__main__":
    *sources, target = map(Path, sys.argv[1:])
    target.write_text(page([json.loads(source.read_text()) for source in sources]))
