"""Writes docs/results/peers.md from the figures of `python -m benchmarks.peers`.

    R=docs/results; python -m benchmarks.peers.page $R/peers.json [$R/peers-MACHINE.json ...] $R/peers.md

A table for each model, form and size of requests, and below it the command that measured it; a section for
each further machine. Where a hypervisor hides the processor's name, its vector extensions tell what it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
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

NOTES = """## What bounds the figures

- **fp32.** The products of the dense net run at some 94% of what the core's instructions allow (240 of 256
  GFLOP/s by ONNX Runtime's profile), and are most of a request: at 270 rows 1.24 of 1.7 ms. Peers run the
  same session, so what is left to gain is the front: 0.1 ms of the 0.22 of 23 rows. Aims were 1.35 times
  the best peer at 23 rows, 1.3 at 270, and 75% of the session.
- **int8** has static scales; its aims were 2.2 and 2 times. 23 rows take 66 us in the session, 564 at 270.
  OpenVINO's int8 with the same scales takes 112 and 616, its bf16 126 and 770 (one run, in turns).
- **Alone**, fp32 at 23 rows is slower than FastAPI, whose request has no admission, routing, accounting of
  latency or metrics; at 270 rows, and in int8, it is faster. With 16 connections batches share that work.
- **The knee.** Polyrec rejects at once what its latency model expects to be late, and a rejected request
  counts as missed. Peers reject nothing; past their knee p99 passes the limit, to hundreds of ms within one
  trial.
- **One context.** Aims were 2, 3 and 3.5 times the best peer at 23, 270 and 2,048 candidates. By the
  layers' sizes, half of the features in the context leave 435 of 480 thousand multiply-adds a row in the
  model `kaggle`: its bottom MLP reads dense features of both roles, so it runs for each candidate. Where all
  dense features are the context's (model `user`), 269 thousand are left, so 1.8 times is what fp32 gives by
  operations.

## Why requests are rejected below capacity

Every decision of admission control was recorded on another machine (23 rows, fp32, closed loop 2,047/s, 3
times 2 s a rate, AMD EPYC, 2026-11-23; other programs ran for a part of that time).

| requests/s | rejected | of these after a pause of over 2 ms | of these in time if half of it counted |
|---|---|---|---|
| 800 | 0.10% | 100% | 100% |
| 1,100 | 0.53% | 100% | 100% |
| 1,400 | 0.93% | 88% | 100% |
| 1,700 | 2.7% | 83% | 100% |
| 2,000 | 6.2% | 47% | 100% |
| 2,400 | 19.0% | 26% | 98% |

Up to three quarters of capacity, rejections follow pauses of some 4 ms in which a shared machine runs
something else. The server cannot know when a request arrived in the pause, assumes its beginning, and so
takes the whole pause from every waiting request's budget. The margin of predictions hardly matters: in
the simulator no margin, or the median instead of the tail, changes the share in time by at most .2 points
up to 94% of capacity. Counting half of a pause gained in the simulator but lost live, in five of five
pairs past capacity.

### On the Intel Xeon

Recorded and profiled on 2026-11-26 while other programs ran, so the figures are of one hour of that machine.

- **The knee** is what the slow phases of a core hold. Its speed has two levels, 1.3 to 1.5 times apart, for
  seconds at a time (processor time of a fixed loop in windows of 0.1 s: 48% of 40 s were slow). With as much
  for a third of the time, and two pauses of 3 ms a second, the simulator is at 99% near 830/s, where the
  closed loop is 1,800/s. The limit is also closer: 10 ms are 19 times what a request takes in the closed
  loop, on the AMD 42 times.
- **Rejections fed on one another.** At 1,630/s, in moments with the core for itself, 20% were rejected, of
  which 78% had waited less than 4 ms. Each was parsed for that, in which the others grew old: 0.25 ms with
  reading it. Now they are rejected unparsed. Simulated as above, .982 instead of .976 are in time at
  1,000/s, .952 instead of .928 at 1,200/s; live, beside work on both cores, .104 instead of .046 at 1,800/s
  (more in 17 of 17 pairs; at 1,400/s in 14, at 1,000/s in 12). The table above was measured before.
- **int8** in the closed loop saves in execution only: a batch of 16 requests takes 3.3 ms instead of 5.7, of
  7.7 and 9.8 ms a round. Reading and answering a request takes 0.27 ms in both.
- **Alone**, fp32 takes 1.01 ms of processor time, 0.46 of it in the interpreter and 0.28 in the session;
  FastAPI 0.85, 0.34 and 0.28 (`perf`, 1,600 requests each). No function has more than a few percent.
"""


def table(model: str, form: str, rows: int, found: Mapping[str, Any], level: int = 2) -> str:
    """The figures of one size of request, as Markdown. level: of its heading."""
    servers = found["servers"]
    peers = [f["knee_requests_per_s"] for name, f in servers.items() if not name.startswith("polyrec")]
    best = max(peers, default=0.0)
    lines = [
        f"{'#' * level} {model}, {rows} rows, p99 within {found['limit_ms']:g} ms: {FORMS[form]}",
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


def page(machines: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    """The whole page. machines: `model/form/rows` -> figures, of each; the first has no heading."""
    parts = [INTRODUCTION]
    for number, results in enumerate(machines):
        if number:
            about = next(iter(results.values()))["machine"]
            parts.append(f"## On {about['processor']} with {about['vectors']}\n")
        for key, found in results.items():
            model, form, rows = key.split("/")
            parts += [table(model, form, int(rows), found, 3 if number else 2), origin(found)]
    return "\n".join([*parts, NOTES])


if __name__ == "__main__":
    *sources, target = map(Path, sys.argv[1:])
    target.write_text(page([json.loads(source.read_text()) for source in sources]))
