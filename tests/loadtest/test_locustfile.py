"""Locust changes the standard library when it is imported, so it always runs as a process of its own."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from server.running import start

ROOT = Path(__file__).parents[2]


def locust(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("LOADTEST_", "LOCUST_", "POLYREC_"))}
    return subprocess.run(
        [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", *arguments],
        cwd=ROOT,
        env=own | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("given", [True, False], ids=["given data", "generated data"])
def test_users_are_answered_by_a_real_server(
    bundle_dir: Path, clicks: Path, tmp_path: Path, given: bool
) -> None:
    environment = {"LOADTEST_BUNDLE": str(bundle_dir), "LOADTEST_RATE": "20", "LOADTEST_ROWS": "2000"}
    if given:
        environment["LOADTEST_DATA"] = str(clicks)
    with start({"bundle": bundle_dir, "drain_grace_s": 0}) as server:
        results = ("--csv", str(tmp_path / "run"), "--only-summary")
        done = locust("-u", "3", "-r", "3", "-t", "3s", "--host", server.url, *results, **environment)
        assert done.returncode == 0, done.stderr
        metrics = httpx.get(f"{server.url}/metrics").text
    with (tmp_path / "run_stats.csv").open() as f:
        stats = {row["Name"]: row for row in csv.DictReader(f)}
    for kind in ("predict", "rank", "infer_ranking"):
        assert int(stats[kind]["Request Count"]) > 1
        assert int(stats[kind]["Failure Count"]) == 0
    for endpoint in ("predict", "rank", "infer"):
        assert f'endpoint="{endpoint}"' in metrics


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"LOADTEST_FILE": "x"}, "unknown variable LOADTEST_FILE; there are LOADTEST_BUNDLE, LOADTEST_DATA"),
        ({"LOADTEST_RATE": "fast"}, "LOADTEST_RATE is 'fast'; give a number"),
    ],
)
def test_a_mistake_in_the_environment_is_named(environment: dict[str, str], says: str) -> None:
    done = locust("-u", "1", "-t", "1s", "--host", "http://127.0.0.1:9", **environment)
    assert done.returncode != 0
    assert says in done.stderr
