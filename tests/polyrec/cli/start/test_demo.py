from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from polyrec.cli.main import main
from polyrec.cli.start.demo import start_logged
from polyrec.models.errors import PolyrecError
from polyrec.planner.plan import load_plan


@pytest.mark.long
def test_the_demo_trains_plans_serves_and_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--once", "--json", "--port", "0", "--rows", "20000", "--out", str(out)]) == 0
    captured = capfd.readouterr()
    assert "polyrec.server" not in captured.err
    assert "SIGTERM: draining" in (out / "server.log").read_text()
    told = json.loads(captured.out)
    assert [*told["metrics"]] == ["table.w4", "table.w32"]
    for metrics in told["metrics"].values():
        assert 0.5 < metrics["auc"] < told["planted"]["auc"]
        assert metrics["log_loss"] > told["planted"]["log_loss"]
    scores = told["answer"]["scores"]
    assert scores == sorted(scores, reverse=True)
    plan = load_plan(out / "plan.json")
    assert told["answer"]["path"] in {path.name for path in plan.paths}
    assert {path.bundle.name for path in plan.paths} == {"table"}
    loads = told["loads"]
    assert [load["load"] for load in loads] == ["at rest", "busy", "peak"]
    assert loads[0]["rate"] < loads[1]["rate"] < loads[2]["rate"]
    assert {path for load in loads for path in load["mix"]} <= {path.name for path in plan.paths}
    assert all(path.latency is not None and path.quality is not None for path in plan.paths)


def test_a_server_that_cannot_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(PolyrecError, match=r"before it was ready: .*no plan file"):
        start_logged({"plan": tmp_path / "none.json"}, tmp_path / "server.log")


KEEPS_SERVING = """
import sys
from polyrec.cli.start.demo import serve_until_signaled
from polyrec.server.child import start
with start({"bundle": sys.argv[1], "drain_grace_s": 30}, lifeline=True, own_group=True) as server:
    print(server.url, flush=True)
    sys.exit(serve_until_signaled(server))
"""


@pytest.mark.parametrize(
    ("number", "to_group"),
    [
        (signal.SIGINT, True),
        (signal.SIGTERM, False),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.long),
    ],
)
def test_signal_to_the_demo_or_its_group_ends_the_server(
    bundle_dir: Path, tmp_path: Path, number: signal.Signals, to_group: bool
) -> None:
    """A supervisor signals the demo alone, a terminal its group; the server drains once in both cases."""
    command = [sys.executable, "-c", KEEPS_SERVING, str(bundle_dir)]
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, process_group=0) as demo,
    ):
        try:
            assert demo.stdout is not None
            url = demo.stdout.readline().decode().strip()
            assert httpx.get(f"{url}/readyz").status_code == 200
            # until its handlers are set, SIGINT is an exception that ends the server with SIGTERM
            while not _handles(demo.pid, number):
                pass
            os.kill(-demo.pid if to_group else demo.pid, number)
            if number == signal.SIGTERM:
                while httpx.get(f"{url}/readyz").status_code == 200:
                    pass
                os.kill(demo.pid, number)  # a second one does not wait for the grace
            assert demo.wait(60) == 0
        finally:
            demo.kill()
    drains = [line for line in log.read_text().splitlines() if "draining" in line]
    assert len(drains) == (1 if number == signal.SIGINT else 2)
    assert all(f"{number.name}: draining" in line for line in drains)


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process handles both signals, SIGTERM set last."""
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return all(int(caught, 16) >> (n - 1) & 1 for n in (number, signal.SIGTERM))


def test_a_port_in_use_is_reported_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from polyrec.server.app.listening import listen

    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    try:
        assert main(["demo", "--once", "--port", str(port), "--out", str(tmp_path / "demo")]) == 2
    finally:
        listener.close()
    assert "cannot listen" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_port_that_cannot_be_is_reported_before_the_training(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--once", f"--port={port}", "--out", str(tmp_path / "demo")])
    assert f"{port} is not a port from 0 to 65535" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
