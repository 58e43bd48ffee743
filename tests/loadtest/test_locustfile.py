"""Locust changes the standard library when it is imported, so it always runs as a process of its own."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from polyrec.loadtest.drivers.server_pages import request_buckets
from tests.forking import start

ROOT = Path(__file__).parents[2]


def started(*arguments: str, headless: bool = True, **environment: str) -> subprocess.Popen[str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("LOADTEST_", "LOCUST_", "POLYREC_"))}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py"),
            *(("--headless",) if headless else ()),
            *arguments,
        ],
        cwd=ROOT,
        env=own | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Waits; a process that does not end is killed, whatever it waits for."""
    try:
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def locust(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return finish(started(*arguments, **environment))


@pytest.fixture(scope="module")
def url(bundle_dir: Path) -> Iterator[str]:
    with start({"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000}) as server:
        yield server.url


def read_counters(url: str) -> int:
    """Rankings that the server has counted, however they ended."""
    return request_buckets(url, endpoint="rank").total


@pytest.mark.parametrize(
    "given",
    [pytest.param(True, id="given data"), pytest.param(False, id="generated data", marks=pytest.mark.long)],
)
def test_users_are_answered_by_a_real_server(
    url: str, bundle_dir: Path, clicks: Path, tmp_path: Path, given: bool
) -> None:
    environment = {"LOADTEST_BUNDLE": str(bundle_dir), "LOADTEST_RATE": "20", "LOADTEST_ROWS": "2000"}
    if given:
        environment["LOADTEST_DATA"] = str(clicks)
    results = ("--csv", str(tmp_path / "run"), "--only-summary")
    done = locust("-u", "3", "-r", "3", "-t", "2s", "--host", url, *results, **environment)
    assert done.returncode == 0, done.stderr
    metrics = httpx.get(f"{url}/metrics").text
    with (tmp_path / "run_stats.csv").open() as f:
        stats = {row["Name"]: row for row in csv.DictReader(f)}
    for kind in ("predict", "rank", "infer_ranking"):
        assert int(stats[kind]["Request Count"]) > 1
        assert int(stats[kind]["Failure Count"]) == 0
    for endpoint in ("predict", "rank", "infer"):
        assert f'endpoint="{endpoint}"' in metrics


def test_requests_of_another_schema_fail_with_the_servers_reason(
    url: str, clicks: Path, tmp_path: Path
) -> None:
    table = pq.read_table(clicks)
    pq.write_table(table.append_column("shade", pa.array(["red"] * len(table))), tmp_path / "c.parquet")
    schema = yaml.safe_load((ROOT / "models/schema/schemas/trivago.yaml").read_text())
    schema["categorical"].append({"name": "shade"})
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schema))
    files = {"LOADTEST_DATA": str(tmp_path / "c.parquet"), "LOADTEST_SCHEMA": str(tmp_path / "s.yaml")}
    done = locust("-u", "1", "-t", "1s", "--host", url, "Rank", LOADTEST_RATE="20", **files)
    assert done.returncode == 1
    assert "unknown feature 'shade'" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (
            {"LOADTEST_FILE": "x"},
            "unknown variable LOADTEST_FILE; there are LOADTEST_BUDGET_MS, LOADTEST_BUNDLE",
        ),
        ({"LOADTEST_BUNDLE": "/nope"}, "no bundle at '/nope': there is no manifest.json"),
        pytest.param(
            *({"LOADTEST_RATE": "fast"}, "LOADTEST_RATE is 'fast'; give a number"), marks=pytest.mark.long
        ),
    ],
)
def test_an_invalid_variable_is_named(environment: dict[str, str], says: str) -> None:
    done = locust("-u", "1", "-t", "1s", "--host", "http://127.0.0.1:9", **environment)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_shape_is_followed_and_counts_are_the_servers(url: str, clicks: Path) -> None:
    environment = {"LOADTEST_DATA": str(clicks), "LOADTEST_ROWS": "1000"}
    before = read_counters(url)
    flags = ("--shape", "step", "-u", "10", "-t", "3s", "--rate", "30", "--stop-timeout", "5")
    done = locust(*flags, "--host", url, "--budget-ms", "30000", "Rank", **environment)
    assert done.returncode == 0, done.stderr
    # a fifth of the users, then all, then a fifth
    assert done.stderr.count("updating to 2 users") == 2
    assert done.stderr.count("updating to 10 users") == 1
    assert _requests(done.stderr) == read_counters(url) - before > 40


@pytest.mark.long
def test_a_test_that_sent_nothing_has_failed(url: str, clicks: Path) -> None:
    environment = {"LOADTEST_DATA": str(clicks), "LOADTEST_ROWS": "1000"}
    done = locust(
        *("-u", "1", "-t", "1s", "--rate", "0.0001", "--budget-ms", "100", "--host", url, "Rank"),
        **environment,
    )
    assert done.returncode == 1
    assert "no request was sent" in done.stderr


@pytest.mark.parametrize("rate", [0, 20])
def test_requests_without_an_answer_at_the_end_have_failed(clicks: Path, rate: int) -> None:
    environment = {"LOADTEST_DATA": str(clicks), "LOADTEST_ROWS": "1000"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        flags = ("-u", "2", "-r", "2", "-t", "3s", "--rate", str(rate), "--budget-ms", "100")
        done = locust(*flags, "--host", url, "Rank", **environment)
    assert done.returncode == 1
    assert "no answer when the test ended" in done.stderr
    assert " 0.00%" in next(line for line in done.stderr.splitlines() if line.startswith("rank "))
    # with a rate also those that their users could not send
    assert _requests(done.stderr) > 10 if rate else _requests(done.stderr) == 2


@pytest.mark.long
def test_workers_counts_add_up_and_a_missed_slo_is_the_exit_status(url: str, clicks: Path) -> None:
    environment = {"LOADTEST_DATA": str(clicks), "LOADTEST_ROWS": "1000"}
    port, before = str(_free_port()), read_counters(url)
    # nothing can be answered in a microsecond
    both = ("--rate", "20", "--budget-ms", "0.001", "--stop-timeout", "5", "--host", url, "Rank")
    users = ("-u", "4", "-r", "4", "-t", "5s", "--expect-workers", "1")
    master = started("--master", "--master-bind-port", port, *users, *both, **environment)
    worker = started("--worker", "--master-port", port, *both, **environment)
    done = finish(master)
    finish(worker)
    assert done.returncode == 1
    assert _requests(done.stderr) == read_counters(url) - before > 5


@pytest.mark.long
def test_the_page_has_an_slo_tab(url: str, clicks: Path) -> None:
    environment = {"LOADTEST_DATA": str(clicks), "LOADTEST_ROWS": "1000"}
    port = _free_port()
    flags = ("--autostart", "-u", "2", "-r", "2", "-t", "60s", "--rate", "20", "--budget-ms", "30000")
    where = ("--web-host", "127.0.0.1", "--web-port", str(port), "--host", url)
    process = started(*flags, *where, "Rank", headless=False, **environment)
    try:
        rows = _slo_rows(f"http://127.0.0.1:{port}/stats/requests")
    finally:
        process.terminate()
        finish(process)
    assert rows[-1]["0"] == "Aggregated"
    assert rows[-1]["2"] == "100.00%"


def _slo_rows(url: str) -> list[dict[str, str]]:
    """The rows of the tab, once there are requests."""
    until = monotonic() + 60
    with httpx.Client(transport=httpx.HTTPTransport(retries=30)) as client:
        while monotonic() < until:
            answer = client.get(url).json()
            rows = next((s["data"] for s in answer["extended_stats"] if s["key"] == "slo"), [])
            if len(rows) > 1 and int(rows[-1]["1"]) > 3:
                return rows
    raise AssertionError("no request in 60 s")


def _requests(printed: str) -> int:
    """The number of requests in the SLO table."""
    rows = [line.split() for line in printed.splitlines() if line.startswith("rank ")]
    return int(next(row[1] for row in rows if row[2].endswith("%")))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
