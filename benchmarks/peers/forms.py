"""CPU time of the dense net for the same rows as independent rows and as rankings, in ONNX Runtime.

    python -m benchmarks.peers.forms --json docs/results/context-forms.json

From how many candidates of one context a ranking pays (`FROM_ROWS` in server/codecs/repeated_contexts.py),
and what the graph of one context saves. No embeddings, no server: batches of one context, and of 270 rows in
several. One thread, by its CPU clock; medians over turns, in which the three graphs alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.peers.models import MODELS
from polyrec.loadtest.machine import processor
from polyrec.models.dlrm.dlrm import DenseNet, dense_slots
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.runtimes.kinds.onnx import open_session
from polyrec.models.runtimes.onnx_graph import plain_graph, ranking_graph
from polyrec.models.schema.batch import F32, I64
from polyrec.report.text import markdown_table

BATCHES = (
    (2, 1),
    (4, 1),
    (8, 1),
    (16, 1),
    (23, 1),
    (270, 1),
    (2048, 1),
    (272, 136),
    (272, 68),
    (272, 34),
    (276, 12),
)
"""Rows and contexts of a batch."""
TURN_ROWS = 1500
"""Rows that a graph executes in a turn, about."""

Arrays = dict[str, F32 | I64]


def net_of(model: str) -> DenseNet:
    """The dense net of a model of benchmarks/peers/models.py, with random weights."""
    torch.manual_seed(0)
    made = MODELS[model]
    schema = made.schema
    slots = PerBlock(len(schema.context.singles), len(schema.candidate.singles))
    return DenseNet(made.architecture, dense_slots(schema), slots).eval()


def inputs_of(net: DenseNet, rows: int, contexts: int) -> tuple[Arrays, Arrays, Arrays]:
    """The same rows for the plain, the ranking and the one-context graph; the last only if there is one."""
    random = np.random.default_rng(rows)
    row = np.arange(rows) * contexts // rows
    width = net.shape.width
    shared: Arrays = {
        "dense_context": random.normal(size=(contexts, net.dense.context)).astype(np.float32),
        "context": random.random((contexts, net.slots.context, width), np.float32) - np.float32(0.5),
    }
    own: Arrays = {
        "dense_candidate": random.normal(size=(rows, net.dense.candidate)).astype(np.float32),
        "candidate": random.random((rows, net.slots.candidate, width), np.float32) - np.float32(0.5),
    }
    forms = ({k: x[row] for k, x in shared.items()} | own, shared | own | {"context_row": row}, shared | own)
    plain, ranking, one = ({k: x for k, x in form.items() if x.shape[-1]} for form in forms)
    return plain, ranking, one


def turn_s(run: Callable[[], object], times: int) -> float:
    """Median CPU seconds of one execution."""
    took = []
    for _ in range(times):
        began = time.thread_time()
        run()
        took.append(time.thread_time() - began)
    return median(took)


def measure(model: str, precision: DensePrecision, turns: int) -> list[dict[str, Any]]:
    """Measures all batches; times in milliseconds."""
    net = net_of(model)
    graphs = (
        plain_graph(net, precision),
        ranking_graph(net, precision),
        ranking_graph(net, precision, one_context=True),
    )
    sessions = [open_session(graph.SerializeToString(), "cpu") for graph in graphs]
    found = []
    for rows, contexts in BATCHES:
        given = inputs_of(net, rows, contexts)[: 3 if contexts == 1 else 2]
        runs = [lambda s=s, g=g: s.run(None, g) for s, g in zip(sessions, given, strict=False)]
        probabilities = [np.asarray(run()[0]) for run in runs]
        times = np.median(
            [[turn_s(run, max(2, TURN_ROWS // rows)) for run in runs] for _ in range(turns)], axis=0
        )
        ms = dict(zip(("plain", "ranking", "one_context"), (1e3 * times).round(4).tolist(), strict=False))
        error = max(float(np.abs(p - probabilities[0]).max()) for p in probabilities[1:])
        found.append({"rows": rows, "contexts": contexts, "ms": ms, "largest_difference": error})
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    rows = []
    for result in results:
        for batch in result["batches"]:
            ms = batch["ms"]
            one = f"{ms['one_context']:.3f}" if "one_context" in ms else ""
            faster = ms["plain"] / ms.get("one_context", ms["ranking"])
            case = [f"{result['model']} {result['precision']}", f"{batch['rows']:,}", str(batch["contexts"])]
            rows.append([*case, f"{ms['plain']:.3f}", f"{ms['ranking']:.3f}", one, f"{faster:.2f}"])
    head = ["model, precision", "rows", "contexts", "plain, ms", "ranking, ms", "one context, ms", "faster"]
    return "\n".join(markdown_table(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.forms",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--model", nargs="+", default=["kaggle", "user"], choices=["kaggle", "large", "user"])
    parser.add_argument("--precision", nargs="+", default=["fp32", "int8"], choices=["fp32", "int8"])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    about = {"processor": processor(), "date": time.strftime("%Y-%m-%d"), "turns": args.turns}
    results = [
        {"model": model, "precision": precision, **about, "batches": measure(model, precision, args.turns)}
        for model in args.model
        for precision in args.precision
    ]
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
