"""Clients of the remote tier in a whole request: ours, redis-py's own, and ours of another commit.

    git worktree add /tmp/before bb019e4
    python -m benchmarks.tiers.remote_clients --before /tmp/before --json docs/results/tier-remote.json

A model in Criteo's shape with untrained rows; the hot rows are in host memory, the others in a Redis Cluster
of three servers of this machine, or in one server. The clients take turns on the same batches. `gather`: all
rows of a batch through the tier stack. `request`: encoded batch to probabilities, which adds pooling and the
dense net.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import redis
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.tiers.generated_model import Queries, model
from benchmarks.tiers.serving import bundle_of
from polyrec.measure.machine.cpu import model as cpu_model
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import I64, Batch
from polyrec.models.tiers.remote.remote import RemoteTier
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.tier_settings import TierSettings
from tests.models.tiers.redis_cluster import RedisCluster
from tests.models.tiers.redis_server import RedisServer

WIDTH = 16
EXPONENT = 1.0
TIMEOUT_S = 5.0
PREFIX = "polyrec:"
CASES = {
    "23 rows, Zipf": (23, False),
    "23 rows, large tables cold": (23, True),
    "100 rows, large tables cold": (100, True),
    "500 rows, Zipf": (500, False),
    "500 rows, large tables cold": (500, True),
}
"""(candidates of a request, whether the large tables' look-ups are all remote)."""

Found = tuple[Bytes, NDArray[np.bool_]]


class RedisPy:
    """Fetches rows by a client of redis-py. many: values of keys, None where there is none."""

    def __init__(
        self, tables: Sequence[str], fallback: Bytes, many: Callable[[list[bytes]], list[Any]]
    ) -> None:
        self._heads = [f"{PREFIX}{table}:".encode() for table in tables]
        self._fallback, self._many = fallback, many

    def send(self, tables: I64, ids: I64) -> tuple[I64, list[bytes]]:
        return tables, keys(self._heads, tables, ids)

    def receive(self, batch: tuple[I64, list[bytes]]) -> Found:
        return rows_of(self._many(batch[1]), self._fallback, batch[0])


def keys(heads: Sequence[bytes], tables: I64, ids: I64) -> list[bytes]:
    return [b"%s%012d" % (heads[t], i) for t, i in zip(tables.tolist(), ids.tolist(), strict=True)]


def rows_of(values: Sequence[bytes | None], fallback: Bytes, tables: I64) -> Found:
    size = fallback.shape[1]
    found = np.array([v is not None and len(v) == size for v in values], bool)
    if found.all():
        return np.frombuffer(bytearray().join(values), np.uint8).reshape(-1, size), found  # type: ignore[arg-type]
    rows = fallback[tables]
    own = [v for v, there in zip(values, found, strict=True) if there]
    rows[found] = np.frombuffer(bytearray().join(own), np.uint8).reshape(-1, size)  # type: ignore[arg-type]
    return rows, found


def tier_of(checkout: Path) -> type[Any]:
    """Returns the RemoteTier of another checkout, imported in place of this one's."""
    package = RemoteTier.__module__.rpartition(".")[0]
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(package)}
    folder = checkout / "models" / "tiers" / "remote"
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules[package] = importlib.util.module_from_spec(spec)
    found: type[Any] = importlib.import_module(RemoteTier.__module__).RemoteTier
    sys.modules.update(ours)
    return found


def clients(
    url: str, clustered: bool, ours: RemoteTier, tables: Sequence[str], before: Path | None
) -> dict[str, Any]:
    """Opens the clients to compare."""
    found: dict[str, Any] = {"ours": ours}
    if before is not None:
        found["ours before"] = tier_of(before)(url, tables, ours.fallback, TIMEOUT_S, PREFIX)
    if not clustered:
        single = redis.Redis.from_url(url, socket_timeout=TIMEOUT_S)
        return found | {"redis-py, mget": RedisPy(tables, ours.fallback, single.mget)}
    cluster = redis.RedisCluster.from_url(url, socket_timeout=TIMEOUT_S)

    def pipelined(names: list[bytes]) -> list[Any]:
        pipe = cluster.pipeline()
        for name in names:
            pipe.get(name)
        values: list[Any] = pipe.execute()
        return values

    return found | {
        "redis-py, pipeline": RedisPy(tables, ours.fallback, pipelined),
        "redis-py, mget by slot": RedisPy(tables, ours.fallback, cluster.mget_nonatomic),
    }


@contextmanager
def store(clustered: bool, folder: Path) -> Iterator[str]:
    servers = RedisCluster(folder) if clustered else RedisServer(folder)
    try:
        yield servers.url
    finally:
        servers.kill()


def timed(stack: TierStack, runtime: Runtime, batches: Sequence[tuple[I64, Batch]]) -> tuple[float, float]:
    """Returns the median seconds of a gather and of a request."""
    out = torch.empty(
        (max(rows.size for rows, _ in batches), stack.tiers.row_format.units),
        dtype=stack.tiers.row_format.unit,
    )
    gathers, requests = [], []
    for rows, batch in batches:
        start = time.perf_counter()
        lost = stack.gather(stack.views.newest, rows, out[: rows.size])
        middle = time.perf_counter()
        runtime.predict(batch)
        gathers.append(middle - start)
        requests.append(time.perf_counter() - middle)
        assert not lost
    return statistics.median(gathers), statistics.median(requests)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the geometric mean and its 95% interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, half = statistics.mean(logs), 1.96 * statistics.stdev(logs) / len(logs) ** 0.5
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compared(clustered: bool, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measures every client in every case."""
    shape = model(args.large_rows)
    bundle = bundle_of(folder / "table", args.large_rows, EXPONENT, WIDTH)
    hot = args.large_rows // 4
    cuts = {
        # Vocabularies have two rows for values without an id
        table: {"host": hot, "remote": rows + 2 - hot} if table in shape.large else {"host": rows + 2}
        for table, rows in shape.tables.items()
    }
    found = []
    with store(clustered, folder) as url:
        placed = {"url": url, "fill": True, "timeout_ms": 1e3 * TIMEOUT_S, "prefix": PREFIX}
        stack = open_tiers(bundle, TierSettings.model_validate({"cuts": cuts, "remote": placed}))
        ours = stack.tiers.remote
        assert ours is not None
        opened = clients(url, clustered, ours, stack.tiers.layout.tables, args.before)
        stacks = {}
        for name, client in opened.items():
            tiers = replace(stack.tiers, remote=client)
            stacks[name] = TierStack(tiers, bundle.encoder, stack.views.newest.remote_ids)
        runtimes = {name: open_runtime("onnx", bundle, tiers=own) for name, own in stacks.items()}
        base = np.concatenate([[0], np.cumsum([rows + 2 for rows in shape.tables.values()])[:-1]])
        for case, (candidates, cold) in CASES.items():
            queries = Queries(shape, EXPONENT, args.batches, candidates, hot if cold else None)
            batches = [
                ((batch.candidate.ranks + base).ravel(), batch)
                for batch in (queries.batch(i) for i in range(args.batches))
            ]
            answers = [
                np.concatenate([runtime.predict(batch) for _, batch in batches[:3]])
                for runtime in runtimes.values()
            ]
            assert all(np.array_equal(answers[0], other) for other in answers)
            runs: dict[str, list[tuple[float, float]]] = {name: [] for name in stacks}
            for turn in tqdm(range(args.turns), case, file=sys.stderr):
                order = list(stacks) if turn % 2 else list(stacks)[::-1]
                for name in order:
                    runs[name].append(timed(stacks[name], runtimes[name], batches))
            remote = [int((stack.tiers.layout.locate(rows)[0] == 3).sum()) for rows, _ in batches]
            for name, times in runs.items():
                row: dict[str, Any] = {"cluster": clustered, "case": case, "client": name}
                row["remote_rows"] = statistics.mean(remote)
                for i, what in enumerate(("gather", "request")):
                    row[f"{what}_us"] = 1e6 * statistics.median(t[i] for t in times)
                    pairs = zip(times, runs["ours"], strict=True)
                    row[f"{what}_ratio"] = interval([t[i] / own[i] for t, own in pairs])
                found.append(row)
        stack.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers.remote_clients")
    add = parser.add_argument
    add("--large-rows", type=int, default=200_000, help="of each of five tables (200,000)")
    add("--batches", type=int, default=40, help="of a turn (40)")
    add("--turns", type=int, default=20, help="of each client (20)")
    add("--before", type=Path, metavar="CHECKOUT", help="of a commit to compare with")
    add("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for clustered in (True, False):
        with tempfile.TemporaryDirectory() as made:
            found += compared(clustered, args, Path(made))
    print(f"{'':<39}{'client':<24}{'rows':>6}{'gather us':>11}{'ratio':>20}{'request us':>11}{'ratio':>20}")
    for row in found:
        cells = f"{row['case']:<30}{row['client']:<24}{row['remote_rows']:>6.0f}"
        for what in ("gather", "request"):
            mean, low, high = row[f"{what}_ratio"]
            cells += f"{row[f'{what}_us']:>11,.0f}{f'{mean:.2f} [{low:.2f}, {high:.2f}]':>20}"
        print(("cluster  " if row["cluster"] else "server   ") + cells)
    if args.json:
        about = {"machine": cpu_model(), "redis-py": redis.__version__, "turns": args.turns}
        args.json.write_text(json.dumps(about | {"runs": found}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
