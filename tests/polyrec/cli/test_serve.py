"""`polyrec serve` as a user types it, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from polyrec.server.app.listening import listen

CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}


def serve(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "polyrec", "serve", *arguments],
        env=CLEAN | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_url_and_ends_on_sigterm(bundle_dir: Path, stop: signal.Signals) -> None:
    with serve("--bundle", str(bundle_dir), "--port", "0", "--drain-grace-s", "0", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = json.loads(process.stdout.readline())
        assert ready["paths"] == ["table@cpu"]
        assert httpx.get(f"{ready['url']}/readyz").json() == {"ready": True}
        process.send_signal(stop)
        assert process.wait(timeout=60) == 0
        assert all(" polyrec.server: " in line for line in process.stderr)  # of its end


def test_the_log_level_is_respected(bundle_dir: Path) -> None:
    quick = ("--port", "0", "--drain-grace-s", "0", "--log-level", "info")
    with serve("--bundle", str(bundle_dir), *quick) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert "INFO polyrec.serving: lane cpu: inline on cpu" in process.stderr.read()


def test_without_json_a_line_of_text_is_printed(bundle_dir: Path) -> None:
    with serve("--bundle", str(bundle_dir), POLYREC_PORT="0", POLYREC_DRAIN_GRACE_S="0") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving table@cpu on ")
        assert "http://127.0.0.1:" in line
        process.terminate()
        assert process.wait(timeout=60) == 0


def failure(*arguments: str, **environ: str) -> str:
    with serve(*arguments, **environ) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    return err


def test_users_mistakes_are_one_line(bundle_dir: Path, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        said = [
            (failure(), "give either --bundle DIR or --plan FILE"),
            (failure("--bundle", str(tmp_path)), "there is no manifest.json"),
            (failure("--plan", "nowhere.json", "--port", "0"), "no plan file 'nowhere.json'"),
            (failure("--bundle", str(bundle_dir), "--port", port), "Address already in use"),
            (failure("--bundle", str(bundle_dir), "--port", "70000"), "--port: "),
            (
                failure("--bundle", str(bundle_dir), POLYREC_PROT="1"),
                "unknown environment variable POLYREC_PROT",
            ),
            (failure("--bundle", str(bundle_dir), "--device", "abacus", "--port", "0"), "abacus"),
        ]
    for line, says in said:
        assert says in line
        assert line.startswith("polyrec: error: ")
        assert line.count("\n") == 1, line
