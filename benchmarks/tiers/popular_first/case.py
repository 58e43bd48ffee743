"""One case of benchmarks.tiers.popular_first: an engine in this process, and queries at their own times.

JSON on the command line, JSON on standard output.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray

from benchmarks.stalls import outside, watched
from benchmarks.tiers.popular_first.arrivals import arriving
from benchmarks.zipf import zipf
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.plan import Plan
from polyrec.planner.routing.query import Dispatch
from polyrec.planner.routing.router import Router
from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from polyrec.server.codecs.rows import Tensors

IN_FLIGHT = 16
"""Queries in flight while throughput is measured."""
QUERIES = 49152
"""Distinct queries, more than a run has: repeated ones would soon all be in the cache."""
CLIENT_STARTS_S = 1.0
"""Time in which the process of the client starts."""


def queries(plan: Plan, case: dict[str, Any]) -> tuple[list[Tensors], NDArray[np.bool_]]:
    """Returns queries of Zipf-distributed ranks, and bool [queries], whether a query is hot.

    The ranks of a hot query are among the case's `hot_rows` hottest of each table.
    """
    random = np.random.default_rng(case["seed"])
    bundle = load_bundle(plan.paths[0].bundle)
    sizes = [v.size for v in bundle.encoder.vocabularies.values()]
    hot = random.random(QUERIES) < case["hot_share"]
    rows = case["rows"]
    columns = []
    for table, size in enumerate(sizes):
        ranks = zipf(random, size, case["exponent"], QUERIES * rows).reshape(QUERIES, rows)
        most = case["hot_rows"][table]
        popular = zipf(random, most, case["exponent"], QUERIES * rows).reshape(QUERIES, rows)
        ranks = np.where(hot[:, None], popular, ranks)
        columns.append(ranks)
    sparse = np.stack(columns, 2)
    dense = random.random((QUERIES, rows, len(bundle.manifest.schema_.dense)), np.float32)
    return [Tensors(dense[i], sparse[i], {}, rows) for i in range(QUERIES)], hot


class Recorder:
    """Predicted and observed seconds of every batch, taken where the router is told of it."""

    def __init__(self, router: Router) -> None:
        self.batches: list[tuple[int, float, float]] = []
        done = router.done

        def recorded(dispatch: Dispatch, now_s: float, took_s: float, waited_s: float = 0.0) -> None:
            self.batches.append((dispatch.rows, dispatch.tail_s, took_s))
            done(dispatch, now_s, took_s, waited_s)

        router.done = recorded  # type: ignore[method-assign]


async def closed_loop(dispatcher: Any, rows: list[Tensors], first: int, seconds: float) -> float:
    """Returns rows/s with IN_FLIGHT queries in flight. first: number of the first query."""
    at, done = first, 0
    until = clock() + seconds
    start = clock()

    async def one() -> None:
        nonlocal at, done
        while clock() < until:
            at += 1
            query = rows[at % len(rows)]
            await dispatcher.submit(query, clock(), 60.0).payload.answer
            done += query.rows

    await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
    return done / (clock() - start)


async def open_loop(
    dispatcher: Any, rows: list[Tensors], first: int, case: dict[str, Any]
) -> tuple[list[tuple[int, float, float]], int, int]:
    """Poisson arrivals; returns (query, time due, time of its answer) of those answered, how many were not,
    and how many answers lack rows of the store."""
    random = np.random.default_rng(case["seed"])
    rate, budget_s = case["rate_rows_s"] / case["rows"], case["budget_s"]
    gaps = random.exponential(1 / rate, int(rate * case["open_s"]))
    due = (clock() + CLIENT_STARTS_S + np.cumsum(gaps)).tolist()
    answers: list[tuple[int, float, float]] = []
    lost = degraded = number = 0
    left = len(due)
    loop = asyncio.get_running_loop()
    finished = loop.create_future()

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            finished.set_result(None)

    def answered(i: int, due_s: float, pending: Any) -> None:
        nonlocal lost, degraded
        try:
            degraded += pending.result().degraded
            answers.append((i, due_s, clock()))
        except Exception:
            lost += 1
        ended()

    def submit_arrived(arrivals: int) -> None:
        """Submits all queries that have arrived before any is executed, as a server does."""
        nonlocal lost, number
        come = len(os.read(arrivals, 1 << 12))
        if not come:
            # at its end, a pipe can be read all the time
            loop.remove_reader(arrivals)
            if number < len(due) and not finished.done():
                finished.set_exception(RuntimeError("the process of the client has ended"))
        for due_s in due[number : number + come]:
            i = (first + number) % len(rows)
            number += 1
            try:
                pending = dispatcher.submit(rows[i], due_s, budget_s).payload.answer
            except Exception:
                lost += 1
                ended()
            else:
                pending.listen(lambda p, i=i, due_s=due_s: answered(i, due_s, p))

    if not due:
        return answers, lost, degraded
    with arriving(due, case["client_cores"]) as arrivals:
        loop.add_reader(arrivals, submit_arrived, arrivals)
        try:
            await finished
        finally:
            loop.remove_reader(arrivals)
    return answers, lost, degraded


def quantiles_ms(took: NDArray[np.float64]) -> dict[str, float]:
    """Returns median, 99th percentile and number of latencies. took: seconds, float64 [queries]."""
    if not took.size:
        return {"p50_ms": math.nan, "p99_ms": math.nan, "n": 0}
    p50, p99 = np.quantile(took, (0.5, 0.99)).tolist()
    return {"p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "n": took.size}


def tail_errors(batches: list[tuple[int, float, float]]) -> dict[str, float]:
    """Returns how well predicted tails fit: the quantile loss at 0.99, also over the mean batch time, and the
    share of the batches that took longer than predicted."""
    _, tail, took = np.array(batches).T
    beyond = took - tail
    loss = np.where(beyond > 0, 0.99 * beyond, -0.01 * beyond)
    return {
        "loss": float(loss.mean() / took.mean()),
        "loss_us": 1e6 * float(loss.mean()),
        "longer": float((beyond > 0).mean()),
        "mean_ms": 1e3 * float(took.mean()),
        "tail_ms": 1e3 * float(tail.mean()),
        "batches": len(batches),
    }


async def run(
    engine: Engine, case: dict[str, Any], rows: list[Tensors], hot: NDArray[np.bool_]
) -> dict[str, Any]:
    """Measures one case: capacity in a closed loop, then latencies in an open loop.

    hot: bool [queries], whether all rows of a query are in memory.
    """
    dispatcher = engine.serving.dispatcher
    cold_rows = engine.serving.tiers.cold_rows
    await closed_loop(dispatcher, rows, 0, case["warm_s"])
    found: dict[str, Any] = {"rows_per_s": await closed_loop(dispatcher, rows, QUERIES // 4, case["seconds"])}
    answers = [await dispatcher.submit(rows[i], clock(), 60.0).payload.answer for i in range(64)]
    found["answers"] = [np.asarray(a.probabilities, np.float64).tolist() for a in answers]
    gc.collect()
    gc.freeze()
    figures = None if cold_rows is None else replace(cold_rows.figures)
    recorder = Recorder(dispatcher.router)
    open_s = case["open_s"]
    cpu = time.process_time()
    with watched() as stalls:
        answered, lost, degraded = await open_loop(dispatcher, rows, QUERIES // 2, case)
    found["cpu"] = (time.process_time() - cpu) / open_s
    query, due_s, ended_s = np.array(answered).reshape(-1, 3).T
    query = query.astype(int)
    calm, took = outside(stalls, due_s, ended_s), ended_s - due_s
    for kind, of in {"hot": hot[query], "cold": ~hot[query]}.items():
        found[kind] = quantiles_ms(took[of])
        found[f"calm {kind}"] = quantiles_ms(took[of & calm])
    found["stalled"] = sum(end - start for start, end in stalls) / open_s
    found |= {"lost": lost, "degraded": degraded}
    found["tails"] = tail_errors(recorder.batches)
    if cold_rows is not None:
        found["cold_rows"] = {k: v - getattr(figures, k) for k, v in asdict(cold_rows.figures).items()}
    return found


def main() -> None:
    case = json.loads(sys.argv[1])
    os.sched_setaffinity(0, case["server_cores"])
    retain_freed_memory()
    plan = Plan.model_validate_json(Path(case["plan"]).read_text())
    rows, hot = queries(plan, case)
    engine = Engine()
    engine.load(plan)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(run(engine, case, rows, hot))
    print(json.dumps(found))
    sys.stdout.flush()
    engine.close()


if __name__ == "__main__":
    main()
