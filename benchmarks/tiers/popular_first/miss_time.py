"""Processor time of gathering a query whose rows are partly on disk, by phases.

    python -m benchmarks.tiers.popular_first.miss_time

The model, the memory and the queries that miss of benchmarks.tiers.popular_first, gathered one query after
another by one thread, without a server. Phases are timed in a second run, which takes longer for it; the time
of a phase is without that of phases within it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.tiers.popular_first.__main__ import SHARE, add_model_arguments, kept_bundle
from benchmarks.tiers.served_model import plan_of
from benchmarks.zipf import zipf
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.tier_settings import TierSettings


class Phases:
    """Own processor time of functions, which are replaced by ones that are timed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within = [0.0]

    def time(self, owner: Any, name: str, phase: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)
        self.seconds.setdefault(phase, 0.0)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.thread_time() - start
                self.seconds[phase] += took - self._within.pop()
                self._within[-1] += took

        setattr(owner, name, timed)


def queries(bundle: Bundle, stack: TierStack, count: int, rows: int, exponent: float) -> I64:
    """Rows of the fused weight, int64 [count, look-ups]."""
    random = np.random.default_rng(0)
    base = stack.tiers.layout.base
    columns = []
    for table, vocabulary in bundle.encoder.vocabularies.items():
        ids = zipf(random, vocabulary.size, exponent, count * rows)
        columns.append(base[table] + vocabulary.rank_of_id[ids])
    return np.stack(columns, 1).reshape(count, -1).astype(np.int64)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers.popular_first.miss_time")
    add = parser.add_argument
    add_model_arguments(parser)
    add("--queries", type=int, default=2000, help="gathered in each of two runs, after as many (2,000)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    bundle = kept_bundle(args)
    placement = plan_of(bundle, args.directory, bundle.bytes // SHARE, True).placement
    assert placement is not None
    (placed,) = placement.paths
    settings = TierSettings(cuts=placed.tables, cache_bytes=placed.cache_bytes, directory=args.directory)
    stack = open_tiers(bundle, settings)
    rows = queries(bundle, stack, 3 * args.queries, args.rows, args.exponent)
    row_format, view, disk = stack.tiers.row_format, stack.views.newest, stack.tiers.disk
    assert disk is not None
    out = torch.empty((rows.shape[1], row_format.units), dtype=row_format.unit)

    def gathered(part: I64) -> float:
        """Processor time in microseconds for each query."""
        start = time.process_time()
        for query in part:
            stack.gather(view, query, out)
        return 1e6 * (time.process_time() - start) / len(part)

    warm, plain, timed = np.split(rows, 3)
    gathered(warm)
    before = stack.figures().levels["disk"].hits
    print(f"{gathered(plain):.0f} us a query, {disk.reader}")
    print(f"{(stack.figures().levels['disk'].hits - before) / len(plain):.1f} missing rows a query")
    print(f"{gathered(np.repeat(plain[-1:], len(plain), 0)):.0f} us a query whose rows are cached")
    phases = Phases()
    phases.time(stack, "gather", "locate, count")
    phases.time(disk, "acquire", "pin, find pages")
    phases.time(disk.row_cache, "find", "find in cache")
    phases.time(disk.staged, "find", "find pages")
    phases.time(disk.staged, "claim", "find room for pages")
    phases.time(disk._reader, "submit", "start reads")
    phases.time(disk._reader, "wait", "wait for reads")
    phases.time(disk, "ready", "enter the cache: rest")
    phases.time(disk.row_cache, "claim", "enter the cache: find slots, evict")
    phases.time(disk, "release", "unpin")
    phases.time(stack.tiers.slab, "gather", "gather")
    print(f"{gathered(timed):.0f} us a query with phases timed:")
    for phase, seconds in sorted(phases.seconds.items(), key=lambda item: -item[1]):
        print(f"{1e6 * seconds / len(timed):8.1f} us  {phase}")
    stack.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
