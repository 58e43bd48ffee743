"""`polyrec rollout` against a real server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from polyrec.cli.main import main
from polyrec.cli.serve.rollout_call import lines
from polyrec.client.admin import AdminCalls
from polyrec.planner.rollout.decision import RolloutBounds
from polyrec.server.child import ServerProcess
from tests.forking import start

TOKEN = "a token of sixteen and more"


@pytest.fixture(scope="module")
def server(bundle_dir: Path) -> Iterator[ServerProcess]:
    with start({"bundle": bundle_dir, "admin_token": TOKEN, "drain_grace_s": 0}) as child:
        yield child


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYREC_ADMIN_TOKEN", TOKEN)


def test_a_rollout_from_start_to_promotion(
    server: ServerProcess, bundle_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--url", server.url]
    assert main(["rollout", "status", *at]) == 0
    assert capsys.readouterr().out == "model trivago: no rollout\n"
    bounds = ["--promote-after", "1h", "--max-psi", ".2", "--min-requests", "10"]
    assert main(["rollout", "start", str(bundle_dir), "--by", "user_id", *bounds, *at]) == 0
    assert "gets 0.05 of the values of user_id" in capsys.readouterr().out
    assert main(["rollout", "start", str(bundle_dir), *at]) == 2
    assert "409: model 'trivago': a rollout of version" in capsys.readouterr().err
    assert main(["rollout", "share", ".5", *at, "--json"]) == 0
    rollout = json.loads(capsys.readouterr().out)["rollout"]
    assert (rollout["share"], rollout["bounds"]["max_psi"], rollout["bounds"]["promote_after_s"]) == (
        0.5,
        0.2,
        3600,
    )
    assert main(["rollout", "promote", "--reason", "ticket 7", *at]) == 0
    assert "model trivago: promoted at" in capsys.readouterr().out
    assert main(["rollout", "rollback", *at]) == 2
    assert "polyrec rollout rollback --previous" in capsys.readouterr().err
    assert main(["rollout", "rollback", "--previous", *at]) == 0
    assert re.fullmatch(r"serves version \S+ again: table@cpu\n", capsys.readouterr().out)
    assert main(["rollout", "rollback", "--previous", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["paths"] == ["table@cpu"]


def test_a_wait_ends_at_its_timeout_and_the_rollout_goes_on(
    server: ServerProcess, bundle_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--url", server.url]
    waiting = ["--wait", "--timeout", "0.1s", "--promote-after", "1h"]
    assert main(["rollout", "start", str(bundle_dir), *waiting, *at]) == 4
    shown = capsys.readouterr()
    assert shown.out.count("running: version") == 2
    assert f"end it: polyrec rollout rollback --url {server.url}" in shown.err
    assert main(["rollout", "rollback", *at]) == 0


def test_the_exit_status_of_a_wait_is_the_outcome(
    server: ServerProcess, bundle_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--wait", "--promote-after", "1s", "--url", server.url]
    # without requests nothing is shown to hold, so the operator ends it
    ended = threading.Thread(target=roll_back, args=(server.url,))
    ended.start()
    assert main(["rollout", "start", str(bundle_dir), *arguments]) == 3
    ended.join()
    assert "by the operator's call" in capsys.readouterr().out


def test_an_interrupted_wait_says_that_the_rollout_goes_on(
    server: ServerProcess, bundle_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--url", server.url]
    command = [sys.executable, "-m", "polyrec", "rollout", "start", str(bundle_dir), "--wait", *at]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "running: version" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"end it: polyrec rollout rollback --url {server.url}" in said
    assert main(["rollout", "rollback", *at]) == 0


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (TOKEN, "the server was restarted, which ended the rollout"),
        pytest.param("another token of sixteen and more", "error: 401: ", marks=pytest.mark.long),
    ],
)
def test_a_wait_ends_when_the_server_was_restarted(
    bundle_dir: Path, capsys: pytest.CaptureFixture[str], token: str, said: str
) -> None:
    settings = {"bundle": bundle_dir, "admin_token": TOKEN, "drain_grace_s": 0}
    statuses: list[int] = []
    with start(settings) as first:
        at = ["rollout", "start", str(bundle_dir), "--wait", "--url", first.url]
        waiting = threading.Thread(target=lambda: statuses.append(main(at)))
        waiting.start()
        with AdminCalls(first.url) as calls:
            while calls.get("rollout")["rollout"] is None:
                time.sleep(0.1)
    with start(settings | {"port": urlsplit(first.url).port, "admin_token": token}):
        waiting.join(60)
    assert statuses == [2]
    assert said in capsys.readouterr().err


def roll_back(url: str) -> None:
    """Waits until the rollout has begun, as one that ends before is an error of `start`; then ends it."""
    with AdminCalls(url) as calls:
        while calls.get("rollout")["rollout"] is None:
            time.sleep(0.2)
    assert main(["rollout", "rollback", "--url", url]) == 0


def test_model_must_be_named_if_there_are_several(
    bundle_dir: Path, shop_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = f"hotels={bundle_dir},shop={shop_dir}"
    with start({"plans": plans, "admin_token": TOKEN, "drain_grace_s": 0}) as several:
        at = ["--url", several.url]
        for call in (["start", str(shop_dir)], ["share", ".1"], ["promote"], ["rollback"]):
            assert main(["rollout", *call, *at]) == 2
            message = "the server has several models; name one: --model hotels, --model shop"
            assert message in capsys.readouterr().err
        folders = ["--plan", str(tmp_path), "--log", str(tmp_path), "--state", str(tmp_path / "state")]
        assert main(["loop", "run", *folders, *at]) == 2
        assert message in capsys.readouterr().err
        assert main(["rollout", "status", *at]) == 0
        assert capsys.readouterr().out == "model hotels: no rollout\n"
        assert main(["rollout", "start", str(shop_dir), "--model", "hotels", *at]) == 2
        message = "model 'hotels' has schema 'trivago', the canary schema 'shop'"
        assert message in capsys.readouterr().err
        assert main(["rollout", "start", str(shop_dir), "--model", "shop", *at]) == 0
        assert capsys.readouterr().out.startswith("model shop: running: version")
        assert main(["rollout", "rollback", "--model", "shop", *at]) == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
def test_no_server_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "status", "--url", url]) == 2
    assert "no answer from" in capsys.readouterr().err


def test_no_token_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("POLYREC_ADMIN_TOKEN")
    assert main(["rollout", "status"]) == 2
    assert "POLYREC_ADMIN_TOKEN is not set" in capsys.readouterr().err


def test_the_status_shows_both_versions_and_the_decision() -> None:
    arm = {"requests": 1000, "failed": 3, "late": 1, "p50_ms": 1.0, "p95_ms": 2.5, "p99_ms": None}
    figures = {"age_s": 12.4, "stable": arm, "canary": arm, "psi": 0.213, "psi_low": 0.12, "psi_high": 0.3}
    decision = {"verdict": "rollback", "reason": "scores shifted", "figures": figures}
    ended = {
        "ended": 60.0,
        "began": 0.0,
        "lasted_s": 60.0,
        "changes": [],
        "outcome": "rolled_back",
        "canary_version": "v2",
        "reason": "shifted",
    }
    both = [ended | {"decision": decision}, ended | {"decision": None}]
    shown = lines({"model": "m", "rollout": None, "ended": both})
    assert shown[0].startswith("model m: rolled back at 19")
    assert shown[3].split() == ["canary", "1000", "3", "(0.3%)", "1", "(0.1%)", "1.00", "2.50", "-"]
    assert shown[4] == "scores: PSI 0.213, beyond chance 0.120 to 0.300"
    assert shown[5] == "decision after 12 s: rollback: scores shifted"
    assert shown[6].startswith("earlier: rolled back at")
    promoted = ended | {"outcome": "promoted", "changes": ["row updates left behind: 3 of path table@cpu"]}
    shown = lines({"model": "m", "rollout": None, "ended": [promoted | {"decision": None}]})
    assert shown[1:] == ["row updates left behind: 3 of path table@cpu"]
    figures["canary"] = arm | {"waited_ms": 12.0, "excused": 7}
    shown = lines({"model": "m", "rollout": None, "ended": [ended | {"decision": decision}]})
    assert "waited for a CPU core: 12.00 ms per answer" in shown[5]
    assert "7 unanswered requests" in shown[5]


def test_the_status_of_a_running_rollout_shows_bounds_beside_figures() -> None:
    arm = {"requests": 10, "failed": 0, "late": 0, "p50_ms": 1.0, "p95_ms": 2.5, "p99_ms": 3.0}
    loss = {"pairs": 300, "pairs_failed": 0, "loss": 0.021, "loss_low": 0.01, "loss_high": 0.03}
    live = {"live": -0.001, "live_low": -0.004, "live_high": 0.002}
    psi = {"psi": 0.03, "psi_low": 0.0, "psi_high": 0.05}
    figures = {"age_s": 12.4, "stable": arm, "canary": arm, **psi, **loss, **live}
    rollout = {
        **{"state": "running", "canary_version": "v2", "stable_version": "v1", "plan": "v2.json"},
        **{"share": 0.1, "by": None, "bounds": RolloutBounds().model_dump(), "changes": ["fewer paths"]},
        "decision": {"verdict": "continue", "reason": "why", "figures": figures},
    }
    shown = lines({"model": "m", "rollout": rollout, "ended": []})
    assert shown.pop(1) == "if promoted: fewer paths"
    assert shown[2].split()[:4] == ["stable", "10", "0", "0"]
    assert shown[4] == "scores: PSI 0.030, beyond chance 0.000 to 0.050, allowed 0.1"
    assert shown[5].endswith("expected loss of information 0.0210, 0.0100 to 0.0300, allowed 0.02")
    assert shown[6].endswith("information gain -0.0010, -0.0040 to +0.0020, allowed -0.01")
