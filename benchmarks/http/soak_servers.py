"""Starts the two servers of the soak test, with their expected answers and disturbances.

`lanes` has two paths on process lanes, which can be killed. `tiers` has its rows in memory and in Redis,
which can be restarted; it needs a redis-server. There are two servers because rows in tiers can only be read
by the server's own process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.lanes.memory import process_tree
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.server_pages import get_json
from polyrec.loadtest.traffic.queries import Queries, read_rows
from polyrec.loadtest.traffic.request_bodies import INFER, PREDICT, RANK
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import F32
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.child import ServerProcess, start
from tests.models.tiers.redis_server import RedisServer

TOKEN = "a token for the soak test"
QUERIES = 150
TOLERANCE = 1e-5
"""Maximum difference between probabilities of one path, however requests are batched."""
RUNTIME = "onnx"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which closing a connection resets it."""


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """A request and its expected probabilities by path, float32 [rows]."""

    raw: bytes
    expected: Mapping[str, F32]


@dataclass(frozen=True, slots=True)
class SoakServer:
    """A running server. may_fail: paths whose answers may differ if they report a failure."""

    name: str
    child: ServerProcess
    requests: tuple[KnownRequest, ...]
    may_fail: frozenset[str] = frozenset()

    @property
    def url(self) -> str:
        return self.child.url

    def reload(self) -> None:
        """Reloads the plan. Raises OSError if the server rejects it."""
        request = urllib.request.Request(
            f"{self.url}/v1/admin/reload", b"{}", {"Authorization": f"Bearer {TOKEN}"}
        )
        urllib.request.urlopen(request, timeout=60).close()

    def kill_lane(self, number: int) -> None:
        """Sends SIGKILL to the process of one lane, if it is alive."""
        pids = [lane["pid"] for lane in get_json(self.url, "/v1/paths")["lanes"] if lane.get("pid")]
        own = self.child.process.pid
        if pids and (pid := pids[number % len(pids)]) != own:
            os.kill(pid, signal.SIGKILL)

    def abort(self, number: int) -> None:
        """Acts as a client that disconnects in the head, in the body, or before its answer."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        raw = self.requests[number % len(self.requests)].raw
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(raw[: (20, len(raw) - 5, len(raw))[number % 3]])
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)

    def mismatch(self, index: int, body: bytes) -> str:
        """Describes how an answer of status 200 differs from the expected one; empty if it does not."""
        answer = json.loads(body)
        described = answer.get("parameters", answer)
        path = described["path"]
        if described.get("reason") == "failure" and path in self.may_fail:
            return ""
        expected = self.requests[index].expected[path]
        if "order" in answer:
            given = np.empty(expected.size, np.float32)
            given[answer["order"]] = answer["scores"]
        elif "outputs" in answer:
            given = np.array(answer["outputs"][0]["data"], np.float32)
        else:
            given = np.array(answer["predictions"], np.float32)
        if given.shape != expected.shape:
            return f"{path}: {given.size} probabilities for {expected.size} rows"
        off = float(np.abs(given - expected).max())
        return "" if off <= TOLERANCE else f"{path}: off by {off:g}"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and descriptors of a process and its children. rss_bytes: resident, with shared pages."""

    processes: int
    rss_bytes: int
    descriptors: int


def footprint(pid: int) -> Footprint:
    """Reads a process tree's footprint from /proc; ignores processes that end meanwhile."""
    processes = rss = descriptors = 0
    for each in process_tree(pid):
        try:
            status = Path(f"/proc/{each}/status").read_text()
            descriptors += len(os.listdir(f"/proc/{each}/fd"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        processes += 1
        rss += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) * 1024
    return Footprint(processes, rss, descriptors)


def known_requests(clicks: Path, bundles: Mapping[str, Bundle]) -> tuple[KnownRequest, ...]:
    """Returns predictions, rankings and inference requests of the data with each path's expected answers."""
    first = next(iter(bundles.values()))
    schema = first.manifest.schema_
    data = read_rows(clicks, schema, 50 * QUERIES)
    queries = Queries(data, schema, first.encoder)
    runtimes = {name: open_runtime(RUNTIME, bundle) for name, bundle in bundles.items()}
    targets = {page: Target(f"http://soak{page}") for page in (PREDICT, RANK, INFER)}
    requests = []
    for i in range(min(QUERIES, len(queries))):
        query = queries[i]
        rows = data.take(query.candidates).combine_chunks()
        (batch,) = rows.to_batches()
        expected = {
            name: np.array(runtimes[name].predict(bundle.encoder.from_arrow(batch)), np.float32)
            for name, bundle in bundles.items()
        }
        for page, (body, headers) in (
            (PREDICT, queries.predict(query)),
            (RANK, queries.rank(query)),
            (INFER, queries.infer(query, binary=False)),
        ):
            requests.append(KnownRequest(targets[page].request(body, headers), expected))
    return tuple(requests)


def lanes_server(clicks: Path, bundles: Mapping[str, Bundle], folder: Path, budget_ms: float) -> SoakServer:
    """Starts a server of all bundles on two process lanes."""
    plan = Plan.model_validate(
        {
            "paths": [
                {"name": name, "bundle": bundle.path, "runtime": RUNTIME} for name, bundle in bundles.items()
            ],
            "lanes": [{"name": f"cpu.{i}", "kind": "process"} for i in range(2)],
            "default_budget_ms": budget_ms,
        }
    )
    return SoakServer("lanes", _started(plan, folder / "lanes.json"), known_requests(clicks, bundles))


def tiers_server(
    clicks: Path, bundle: Bundle, folder: Path, budget_ms: float, store: RedisServer
) -> SoakServer:
    """Starts a server of one path on a thread lane; memory holds an eighth of the rows, `store` the rest."""
    rows = {table: v.rows for table, v in bundle.encoder.vocabularies.items()}
    tables = {table: {"host": n // 8, "remote": n - n // 8} for table, n in rows.items()}
    remote = {"url": store.url, "fill": True, "timeout_ms": 50.0}
    plan = Plan.model_validate(
        {
            "paths": [{"name": "tiers@cpu", "bundle": bundle.path, "runtime": RUNTIME}],
            "lanes": [{"name": "cpu.0", "kind": "thread"}],
            "placement": {"paths": [{"path": "tiers@cpu", "tables": tables}], "remote": remote},
            "default_budget_ms": budget_ms,
        }
    )
    child = _started(plan, folder / "tiers.json")
    return SoakServer("tiers", child, known_requests(clicks, {"tiers@cpu": bundle}), frozenset({"tiers@cpu"}))


def opened_store(folder: Path) -> RedisServer | None:
    """Returns a Redis whose rows survive a restart; None without a redis-server."""
    if shutil.which("redis-server") is None:
        return None
    return RedisServer(folder, "--appendonly", "yes", "--loglevel", "warning")


def restart(store: RedisServer) -> None:
    """Kills the store with SIGKILL and starts a new process with the same rows."""
    store.kill()
    store.start()


def _started(plan: Plan, file: Path) -> ServerProcess:
    save_plan(plan, file)
    log = file.with_suffix(".log").open("w")
    with log:
        return start(
            {"plan": file, "admin_token": TOKEN, "drain_grace_s": 0, "log_level": "error"}, stderr=log
        )
