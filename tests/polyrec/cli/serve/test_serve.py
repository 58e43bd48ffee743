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

from polyrec.cli.main import main
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


def test_it_prints_its_url_as_json_and_ends_on_sigint(bundle_dir: Path) -> None:
    with serve("--bundle", str(bundle_dir), "--port", "0", "--drain-grace-s", "0", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = json.loads(process.stdout.readline())
        assert ready["paths"] == ["table@cpu"]
        assert httpx.get(f"{ready['url']}/readyz").json() == {"ready": True}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert all(" polyrec.server: " in line for line in process.stderr)  # of its end


def test_it_prints_a_line_of_text_respects_the_log_level_and_ends_on_sigterm(bundle_dir: Path) -> None:
    environ = {"POLYREC_PORT": "0", "POLYREC_DRAIN_GRACE_S": "0"}
    with serve("--bundle", str(bundle_dir), "--log-level", "info", **environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("serving table@cpu on ")
        assert "http://127.0.0.1:" in line
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert "INFO polyrec.serving: lane cpu: inline on cpu" in process.stderr.read()


def test_a_mistake_is_one_line(bundle_dir: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        with serve("--bundle", str(bundle_dir), "--port", port) as process:
            out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert "Address already in use" in err
    assert err.startswith("polyrec: error: ")
    assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("options", "environ", "says"),
    [
        ((), {}, "give either --bundle DIR or --plan FILE"),
        (("--bundle", "{empty}"), {}, "there is no manifest.json"),
        (("--plan", "nowhere.json"), {}, "no plan file 'nowhere.json'"),
        (("--bundle", "{bundle}", "--port", "70000"), {}, "--port: "),
        (("--bundle", "{bundle}"), {"POLYREC_PROT": "1"}, "unknown environment variable POLYREC_PROT"),
        (("--bundle", "{bundle}", "--device", "abacus"), {}, "abacus"),
    ],
)
def test_users_mistakes_are_named(
    options: tuple[str, ...],
    environ: dict[str, str],
    says: str,
    bundle_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in os.environ.keys() - CLEAN.keys():
        monkeypatch.delenv(name)
    for name, value in ({"POLYREC_PORT": "0"} | environ).items():
        monkeypatch.setenv(name, value)
    assert main(["serve", *(o.format(empty=tmp_path, bundle=bundle_dir) for o in options)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.startswith("polyrec: error: ")
    assert said.err.count("\n") == 1, said.err
