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

FORMS = {"rows": "independent rows", "context": "one context with candidates; peers get the exploded rows"}
HEAD = "| server | closed loop, /s | of the session | alone, ms | knee, /s | of the best peer |"
INTRODUCTION = """# Polyrec beside other servers, at real size

On an AMD EPYC, at equal p99, Polyrec answers 1.19 times the requests of the best peer in fp32 with 23 rows,
as many with 270 rows, and 1.7 to 1.9 times in int8. If the context has all dense features, it answers 1.4 to
2.4 times in fp32 and 2.1 to 5.4 times in int8. On a slower Intel Xeon it is 1.12 and 1.45 times with 23
rows, 0.60 and 2.28 with 270, whose limit is 4 times what a request takes.

Each server has one core, and the load comes from another. All figures are medians over turns in which the
servers alternate. Every answer is compared with a float64 reference. Models and method:
`python -m benchmarks.peers --help`.

- **Closed loop**: requests/s over 16 connections. *Of the session*: rows/s as a share of those of the same
  dense graph in an ONNX Runtime session without any server.
- **Alone**: median latency of one connection.
- **Knee**: the highest open-loop Poisson rate, requests/s, at which p99 stays within the limit and at least
  99% of the requests are answered correctly in time. Requests name the limit as their latency budget, which
  peers ignore.
"""

NOTES = """## What limits the figures

- **fp32.** The products of the dense net run at about 94% of what the core's instructions allow (240 of 256
  GFLOP/s by ONNX Runtime's profile), and are most of a request: 1.24 of 1.7 ms at 270 rows. Peers run the
  same session, so only the front can be faster: 0.1 ms of the 0.22 of 23 rows. Goals were 1.35 times the best
  peer at 23 rows, 1.3 at 270, and 75% of the session.
- **int8** has static scales; its goals were 2.2 and 2 times. 23 rows take 66 us in the session, 270 take 564.
  OpenVINO's int8 with the same scales takes 112 and 616, its bf16 126 and 770 (one run, alternating).
- **Alone**, fp32 at 23 rows is slower than FastAPI, which has no admission control, routing, accounting of
  latency or metrics. At 270 rows, and in int8, it is faster. With 16 connections, batches share that work.
- **The knee.** Polyrec rejects at once what its latency model expects to be late, and a rejected request
  counts as missed. Peers reject nothing; past their knee p99 rises to hundreds of ms within one trial.
- **One context.** Goals were 2, 3 and 3.5 times the best peer at 23, 270 and 2,048 candidates. In the model
  `kaggle`, with half of the features in the context, 435 of 480 thousand multiply-adds a row remain, because
  its bottom MLP reads dense features of both roles and so runs for each candidate. If all dense features are
  the context's (model `user`), 269 thousand remain, so fp32 can be 1.8 times as fast.

## Why requests are rejected below capacity

Every decision of admission control was recorded on another machine (23 rows, fp32, closed loop 2,047/s, 3
times 2 s a rate, AMD EPYC, 2026-11-23; other programs ran part of that time).

| requests/s | rejected | of these after a pause of over 2 ms | of these in time if half of it counted |
|---|---|---|---|
| 800 | 0.10% | 100% | 100% |
| 1,100 | 0.53% | 100% | 100% |
| 1,400 | 0.93% | 88% | 100% |
| 1,700 | 2.7% | 83% | 100% |
| 2,000 | 6.2% | 47% | 100% |
| 2,400 | 19.0% | 26% | 98% |

Up to three quarters of capacity, rejections follow pauses of about 4 ms in which a shared machine runs
something else. The server cannot know when in the pause a request arrived, assumes its beginning, and so
subtracts the whole pause from every waiting request's budget. The margin of predictions hardly matters: in
the simulator no margin, or the median instead of the tail, changes the share in time by at most .2 points
up to 94% of capacity. Counting half of a pause gained in the simulator but lost live, in five of five pairs
past capacity.

### On the Intel Xeon

Recorded and profiled on 2026-11-26 while other programs ran, in one hour.

- **The knee** follows the core's slow phases. Its speed has two levels, 1.3 to 1.5 times apart, for seconds
  at a time (processor time of a fixed loop in windows of 0.1 s: 48% of 40 s were slow). With such phases for
  a third of the time and two pauses of 3 ms a second, the simulator answers 99% near 830/s, where the closed
  loop is 1,800/s. The limit is also tighter: 10 ms is 19 times what a request takes in the closed loop, on
  the AMD 42 times.
- **Slower phases.** In one trial of eight at 800/s .62 were in time, as a request took about 3 times as
  long for 0.8 s. A simulated core 3 times as slow answers .57 of 800/s, near its capacity of 454/s, from the
  first 0.1 s on, and all 0.1 s after it is fast again: no estimate runs away. Counting half of a pause
  simulated: .955 instead of .898 in time where every 15 ms have 5 of a third of the speed, .812 instead of
  .840 at 1.3 times the capacity.
- **Early rejection.** At 1,630/s with the core to itself, 20% were rejected, 78% of them after less than 4
  ms. Parsing each first took 0.25 ms, while the others aged. Since then they are rejected unparsed (the
  table above is older). In the simulator, .982 instead of .976 are in time at 1,000/s, and .952 instead of
  .928 at 1,200/s. Live, beside work on both cores, .104 instead of .046 are at 1,800/s (more in 17 of 17
  pairs; at 1,400/s in 14, at 1,000/s in 12).
- **int8** saves execution only: a batch of 16 requests takes 3.3 ms instead of 5.7, of a round of 7.7 and 9.8
  ms. Reading and answering a request takes 0.27 ms in both.
- **270 rows** take 5 to 7 ms, and the limit is 25, so a third waiting request is often expected to be late.
  In another run (7 or 8 trials of 2 s a rate) .994 were in time at 70/s, .982 at 90 and .981 at 120; all
  others were rejected. Judged by median times below 70% of capacity, by tails at 100% and gradually between,
  it was .994, .993 and .939, so this was not kept.
- **Alone**, fp32 takes 1.01 ms of processor time, 0.46 of it in the interpreter and 0.28 in the session;
  FastAPI takes 0.85, 0.34 and 0.28 (`perf`, 1,600 requests each). No function has more than a few percent.
"""


def table(model: str, form: str, rows: int, found: Mapping[str, Any], level: int = 2) -> str:
    """Returns the figures of one request size as Markdown. level: heading level."""
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
