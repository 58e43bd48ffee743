"""Offers parsed queries to a server's dispatcher in its own process: no sockets, no HTTP, no JSON.

Started by benchmarks/lanes/cores.py with a plan. Reads JSON objects from standard input, one per line, and
writes one for each. A turn is a closed loop: the next query follows an answer. Every answer is compared with
the float64 reference of benchmarks/peers.

    {"seconds": 2.0, "outstanding": 16}
    {"requests": 4000, "seconds": 2.01, "driver_s": 0.012, "batch_rows": 184.0}

driver_s: CPU seconds of the driver's own code. batch_rows: mean size of the batches, weighted by query.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import uvloop

from benchmarks.peers.models import value_of_rank
from benchmarks.peers.queries import draw, json_body
from benchmarks.peers.reference import Reference
from polyrec.models.allocator import retain_freed_memory
from polyrec.planner.plan import Limits, load_plan
from polyrec.server.app.opening import open_serving
from polyrec.server.app.serving import Serving
from polyrec.server.clock import clock
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.dispatch.answer import Pending
from polyrec.server.metrics.metrics import Metrics
from polyrec.server.tiers.update_store import UpdateStore

BUDGET_S = 600.0
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "int8": 2e-2}
REQUESTS = {23: 256, 270: 64, 2048: 12}


class Driver:
    """Keeps a number of queries of one size outstanding, and checks their answers."""

    def __init__(self, serving: Serving, rows: int) -> None:
        bundle = serving.bundle
        schema = bundle.manifest.schema_
        drawn = draw(schema, value_of_rank(bundle), REQUESTS.get(rows, 64), rows)
        codec = OipCodec(schema, Limits(), bundle.encoder.vocabularies)
        self._queries = [codec.decode(json_body(drawn, i), None).rows for i in range(len(drawn))]
        reference = Reference(bundle)
        self._expected = [reference(*r) for r in zip(drawn.dense, drawn.sparse, strict=True)]
        self._tolerance = TOLERANCE[serving.plan.paths[0].precision]
        self._dispatcher = serving.dispatcher
        self._sent = 0

    async def turn(self, seconds: float, outstanding: int) -> dict[str, float]:
        """Runs a closed loop. Raises ValueError for a wrong answer, and what an answer raises."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: list[tuple[int, Pending]] = []
        open_queries, driver_s = outstanding, 0.0
        began_s = clock()
        ends_s = began_s + seconds

        def offer() -> None:
            index = self._sent % len(self._queries)
            self._sent += 1
            query = self._dispatcher.submit(self._queries[index], clock(), BUDGET_S)
            query.payload.answer.listen(lambda pending: heard(index, pending))

        def heard(index: int, pending: Pending) -> None:
            nonlocal open_queries, driver_s
            entered = time.thread_time()
            answers.append((index, pending))
            going_on = clock() < ends_s
            if not going_on:
                open_queries -= 1
                if not open_queries:
                    ended.set_result(None)
            driver_s += time.thread_time() - entered
            if going_on:
                offer()

        for _ in range(outstanding):
            offer()
        await ended
        took_s = clock() - began_s
        for index, pending in answers:
            error = np.abs(pending.result().probabilities - self._expected[index]).max()
            if not error <= self._tolerance:
                raise ValueError(f"query {index} is answered wrong, by {error}")
        batch_rows = np.mean([pending.result().batch_rows for _, pending in answers])
        return {
            "requests": len(answers),
            "seconds": took_s,
            "driver_s": driver_s,
            "batch_rows": float(batch_rows),
        }


async def run(serving: Serving, rows: int) -> None:
    """Answers the commands of standard input until it ends."""
    driver = Driver(serving, rows)
    serving.dispatcher.attach()
    loop = asyncio.get_running_loop()
    print(json.dumps({"ready": True}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await driver.turn(**json.loads(line))), flush=True)


def main() -> None:
    plan, rows = Path(sys.argv[1]), int(sys.argv[2])
    retain_freed_memory()
    serving = open_serving(load_plan(plan), Metrics(), {}, UpdateStore())
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(serving, rows))
    finally:
        serving.close()


if __name__ == "__main__":
    main()
