"""Measures what live quality costs a server's clients, in pairs of turns with the judge stopped and working.

    taskset -c 0,1 python -m benchmarks.http.live_quality BUNDLE --data FILE

Server, log writer and judge share the first core; a closed-loop client has the second. The judge has the
maximum amount of work: labels are final after a second, and there is no pause between rounds.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import tempfile
import time
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import orjson
import pyarrow.parquet as pq

from benchmarks.command import CLIENT_CORE, SERVER_CORE, command_parser
from benchmarks.operations.cold_start import requests_of
from benchmarks.paired import ratio
from polyrec.loadtest.machine import core_seconds
from polyrec.models.bundle.bundle import load_bundle
from polyrec.server.child import start

TURN_S = 4.0
JUDGE = b"polyrec.server.live_quality.process"
TOKEN = "feedback-token-of-this-benchmark"


def bodies(bundle: Path, data: Path, most: int = 200) -> list[bytes]:
    """Returns ranking requests of the data, with at least one row each."""
    schema = load_bundle(bundle).manifest.schema_
    rows = pq.read_table(data).slice(0, 20_000)
    return [body for _, body in islice(requests_of(rows, schema), most)]


def turn(
    connection: http.client.HTTPConnection, requests: list[bytes], name: str
) -> tuple[float, float, float]:
    """Sends requests for TURN_S, with feedback for every tenth; returns requests/s, p50 and p99 in ms."""
    took: list[float] = []
    end_s = time.monotonic() + TURN_S
    while (begun_s := time.monotonic()) < end_s:
        request_id = f"{name}-{len(took)}"
        _post(connection, "/v1/rank", requests[len(took) % len(requests)], {"X-Request-Id": request_id})
        took.append(time.monotonic() - begun_s)
        if len(took) % 10 == 0:
            label = orjson.dumps({"request_id": request_id, "positives": [0]})
            _post(connection, "/v1/feedback", label, {"Authorization": f"Bearer {TOKEN}"})
    p50, p99 = np.percentile(took, [50, 99])
    return len(took) / sum(took), 1e3 * float(p50), 1e3 * float(p99)


def _post(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> None:
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status}")


def judge_of(server: int) -> int:
    """Returns the process id of a server's judge."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == server and JUDGE in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
        except OSError:
            continue  # it ended meanwhile
    raise SystemExit("the server has no judge")


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--priority", choices=["idle", "normal"], default="idle")
    arguments = parser.parse_args()
    requests = bodies(arguments.bundle, arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder, "tokens.json")
        clients = [{"name": "bench", "token": TOKEN, "rights": ["feedback"]}]
        tokens.write_text(json.dumps({"clients": clients, "anonymous": {}}))
        settings = {
            "bundle": arguments.bundle,
            "tokens": tokens,
            "prediction_log": Path(folder, "log"),
            "prediction_log_window_s": 1,
            "prediction_log_flush_s": 1,
            "live_quality": "measure",
            "live_quality_every_s": 0.01,
            "live_quality_trust": "bench",
            "live_quality_priority": arguments.priority,
        }
        # the log's writer and the judge inherit the server's core
        with start(settings, core=SERVER_CORE) as child:
            os.sched_setaffinity(0, {CLIENT_CORE})
            address = urlsplit(child.url)
            connection = http.client.HTTPConnection(address.hostname or "", address.port or 0)
            judge = judge_of(child.process.pid)
            for i in range(5):
                turn(connection, requests, f"warm{i}")
            found: dict[str, list[tuple[float, float, float]]] = {"stopped": [], "at work": []}
            worked_s = 0.0
            for pair in range(arguments.pairs):
                for state in sorted(found, reverse=bool(pair % 2)):
                    os.kill(judge, signal.SIGCONT if state == "at work" else signal.SIGSTOP)
                    before_s = core_seconds(judge)[0]
                    found[state].append(turn(connection, requests, f"{state[0]}{pair}"))
                    worked_s += core_seconds(judge)[0] - before_s
            os.kill(judge, signal.SIGCONT)
    share = worked_s / (TURN_S * arguments.pairs)
    print(
        f"judge {arguments.priority}, at work: {share:.1%} of a core; {arguments.pairs} pairs of {TURN_S:g} s"
    )
    for i, what in enumerate(("requests/s", "p50 ms", "p99 ms")):
        on, off = ([each[i] for each in found[state]] for state in ("at work", "stopped"))
        middle, low, high = ratio(on, off)
        print(f"{what:10} {np.mean(on):9.3f} over {np.mean(off):9.3f}: {middle:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
