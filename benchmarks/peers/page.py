"""Writes docs/results/peers.md from the figures of `python -m benchmarks.peers`.

    python -m benchmarks.peers.page docs/results/peers.json docs/results/peers.md

A table for each model, form and size of requests, and below it the command that measured it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMS = {"rows": "independent rows", "context": "one context with candidates; peers get the exploded rows"}
HEAD = "| server | closed loop, /s | of the session | alone, ms | knee, /s | of the best peer |"
INTRODUCTION = """# Polyrec beside other servers, at real size

Each server has one core, the load comes from another. Closed loop: requests/s over 16 connections; the
next column divides its rows/s by those of the same dense graph in an ONNX Runtime session without any server.
Alone: one connection, median latency. Knee: the highest open-loop Poisson rate, requests/s, at which p99
stays within the limit and at least 99% of the requests are answered right in time; these requests name the
limit as their latency budget, as a client with that objective would, which peers ignore. All are medians over
turns in which the servers alternate; every answer is compared with a float64 reference. Models and method:
`python -m benchmarks.peers --help`.
"""

NOTES = """## What bounds the knee

With a budget, Polyrec rejects at once what its latency model expects to be late, and a rejected request
counts as missed. In most trials that missed on 2026-11-23 the answered requests still had time. At 23
rows fp32 and 2,373 requests/s, 1.44 times mosec's knee, their p99 was 7.6 and 8.3 ms of 10, and 1.3 and
2.5% were rejected (at 1,698 requests/s one of two trials was late, 11.8 ms). At 270 rows fp32 their p99
was 18 to 20 ms of 25 at every rate from 261 to 327 requests/s, and 1 to 5% were rejected. So the knee is
where rejections pass 1%, not where answers become late: admission keeps back a fifth to a quarter of the
budget. Peers reject nothing; past their knee p99 passes the limit. Trials have 400 to 5,000 requests,
and one turn does not show differences below 10%.

## What bounds one context

The aim of 3 times the best peer at 270 candidates is missed. By the layers' sizes, half of the features in
the context leave 435 of 480 thousand multiply-adds a row in this model: its bottom MLP reads dense features
of both roles, so it runs for each candidate. Where all dense features are the context's (model `user`), 269
thousand are left; `user`, 23 and 2,048 candidates were not measured against peers. The run at 270 was
disturbed: other programs of its author used both cores for a part of it, and its machine is not that of the
tables above. So only its ratios count, and those roughly. It asked for 2,048 and 23 rows too, which a time
limit cut off.
"""


def table(model: str, form: str, rows: int, found: Mapping[str, Any]) -> str:
    """The figures of one size of request, as Markdown."""
    servers = found["servers"]
    peers = [f["knee_requests_per_s"] for name, f in servers.items() if not name.startswith("polyrec")]
    best = max(peers, default=0.0)
    lines = [
        f"## {model}, {rows} rows, p99 within {found['limit_ms']:g} ms: {FORMS[form]}",
        "",
        HEAD,
        "|---|---|---|---|---|---|",
    ]
    for name, f in servers.items():
        knee = f["knee_requests_per_s"]
        share = f"{knee / best:.2f}" if best else "-"
        closed = f["closed_requests_per_s"]
        lines.append(
            f"| {name} | {closed:,.0f} | {closed * rows / found['session_rows_per_s']:.0%} "
            f"| {f['alone_ms']:.2f} | {knee:,.0f} | {share} |"
        )
    lines.append(f"| session alone | {found['session_rows_per_s'] / rows:,.0f} | 100% | | | |")
    return "\n".join(lines) + "\n"


def origin(found: Mapping[str, Any]) -> str:
    """Command, machine, date and versions of one table."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    machine = found["machine"]
    turns = min(len(f["turns"]["knee_requests_per_s"]) for f in found["servers"].values())
    return (
        f"`{found['command']}`, {found['date']}, revision {found['revision']}, {turns} turns; "
        f"{machine['processor']}, {machine['cores']}, load average {machine['load average']}, "
        f"{machine['scheduling']}, Python {machine['python']}; {versions}.\n"
    )


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page. results: `model/form/rows` -> figures."""
    parts = [INTRODUCTION]
    for key, found in results.items():
        model, form, rows = key.split("/")
        parts += [table(model, form, int(rows), found), origin(found)]
    return "\n".join([*parts, NOTES])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(page(json.loads(source.read_text())))
