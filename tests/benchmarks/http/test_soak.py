"""The soak in its short form: nothing wrong, no memory kept, no descriptor lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.http.soak import MAX_LEAKED, AnswerCounts, verdict
from benchmarks.http.soak_servers import Footprint, footprint

ROOT = Path(__file__).parents[3]
CALM = Footprint(processes=2, rss_bytes=10**9, descriptors=100)


@pytest.mark.long
def test_a_minute_of_load_and_disturbance_has_no_failures(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    command = [sys.executable, "-m", "benchmarks.http.soak", "--seconds", "60", "--json", str(file)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, json.loads(file.read_text())["found"] if file.exists() else ran.stderr
    counts = json.loads(file.read_text())
    assert counts["done"]["reloads"] > 0
    assert counts["done"]["killed lanes"] > 0
    for server in counts["servers"].values():
        assert server["answered"] > 0
        assert (server["wrong"], server["unanswered"]) == (0, 0)


def test_the_verdict_names_failures() -> None:
    fine = AnswerCounts(sent=1, answered=1)
    assert verdict([fine], CALM, CALM, [], "") == []
    wrong = AnswerCounts(sent=1, answered=1, wrong=1, first_wrong=["table@cpu: off by 0.1"])
    grown = Footprint(2, 2 * 10**9, 100 + MAX_LEAKED + 1)
    found = verdict([fine, wrong], CALM, grown, ["reloads: OSError: no"], "Traceback (most recent call last)")
    assert len(found) == 5
    assert "off by 0.1" in found[1]


def test_a_process_that_opens_files_has_more_descriptors(tmp_path: Path) -> None:
    pid = os.getpid()
    before = footprint(pid)
    with (tmp_path / "a").open("w"), (tmp_path / "b").open("w"):
        now = footprint(pid)
    assert now.descriptors == before.descriptors + 2
    assert now.rss_bytes > 0
