from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx
import pytest

from polyrec.cli.main import main
from polyrec.cli.measure.exit_status import DRIVER_TOO_SLOW, NOTHING_SERVED, SLO_MISSED
from polyrec.cli.measure.open_loop import bodies
from polyrec.loadtest.drivers.connection import LoadError
from tests.forking import start
from tests.loadtest.serving import OK, serving


def test_bodies_are_sent_in_turn(tmp_path: Path) -> None:
    lines = tmp_path / "bodies.jsonl"
    lines.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    each = bodies(None, str(lines))
    assert [each(i) for i in range(3)] == [b'{"a": 1}', b'{"a": 2}', b'{"a": 1}']
    assert bodies(str(lines), None)(5) == lines.read_bytes()
    assert bodies(None, None)(0) is None


def test_unreadable_or_empty_body_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot read body"):
        bodies(str(tmp_path / "absent"), None)
    (tmp_path / "empty").touch()
    with pytest.raises(LoadError, match="is empty"):
        bodies(None, str(tmp_path / "empty"))


def test_a_mistake_is_one_line_and_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "ftp://host/", "--rate", "1"]) == 2
    assert capsys.readouterr().err == "polyrec: error: url 'ftp://host/': give http://host:port/path\n"


def command(*arguments: str) -> tuple[int, str, str, list[bytes]]:
    """Runs the driver as a user does, as a process of its own."""

    async def scenario() -> tuple[int, str, str, list[bytes]]:
        async with serving(lambda i: OK) as server:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "polyrec", "load", server.url("/v1/rank"), *arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate()
            assert process.returncode is not None
            return process.returncode, out.decode(), err.decode(), server.bodies

    return asyncio.run(scenario())


def test_command_reports_as_json(tmp_path: Path) -> None:
    body = tmp_path / "rank.json"
    body.write_bytes(b'{"candidates": {}}')
    status, out, err, received = command(
        *("--rate", "200", "--seconds", "1", "--warmup", "0.2", "--max-lag-ms", "60000"),
        *("--body", str(body), "--json"),
    )
    assert (status, err) == (0, "")
    made = json.loads(out)
    # what it asks afterwards, without a body, are the server's pages
    assert set(received) - {b""} == {b'{"candidates": {}}'}
    assert made["errors"] == 0
    assert 0 < made["requests"] < len(received)
    assert made["p50_ms"] <= made["p99_ms"] <= made["p99_9_ms"] <= made["max_ms"]


def test_figures_are_marked_as_unreliable_if_the_driver_was_late(tmp_path: Path) -> None:
    late = ("--rate", "200", "--seconds", "0.5", "--max-lag-ms", "0", "--budget-ms", "0.001")
    status, out, err, _ = command(*late, "--slo-share", "1", "--report", str(tmp_path))
    assert status == DRIVER_TOO_SLOW
    assert out.startswith("unreliable   the driver was late itself")
    assert {"requests", "latency,", "rows", "driver"} <= {line.split()[0] for line in out.splitlines()}
    assert not any(tmp_path.iterdir())
    assert err.startswith("polyrec: error: the driver could not keep up: ")
    assert err.count("\n") == 1


def error(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} E\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


UNKNOWN = error(404, '{"error": "no model \'x\'"}')
OVERLOADED = error(429, '{"error": "overloaded"}')
STARTING, EXPIRED = error(503, "starting"), error(504, "[]")


@pytest.mark.parametrize(
    ("answers", "expected", "reasons"),
    [
        ([UNKNOWN], NOTHING_SERVED, {"HTTP 404": "no model 'x'"}),
        ([STARTING, UNKNOWN], NOTHING_SERVED, {"HTTP 404": "no model 'x'", "HTTP 503": "starting"}),
        ([OK, UNKNOWN], 0, {"HTTP 404": "no model 'x'"}),
        ([OVERLOADED], 0, {"HTTP 429": "overloaded"}),
        ([EXPIRED, UNKNOWN], 0, {"HTTP 404": "no model 'x'", "HTTP 504": "[]"}),
    ],
)
def test_a_load_without_any_result_fails_and_reasons_are_shown(
    answers: list[bytes], expected: int, reasons: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> int:
        async with serving(lambda i: answers[i % len(answers)]) as server:
            flags = ("--rate", "100", "--seconds", "0.3", "--warmup", "0", "--max-lag-ms", "60000", "--json")
            return await asyncio.to_thread(main, ["load", server.url(), *flags])

    assert asyncio.run(scenario()) == expected
    out, err = capsys.readouterr()
    assert json.loads(out)["reasons"] == reasons
    assert ("no request was served" in err) == (expected == NOTHING_SERVED)


@pytest.mark.long
def test_command_sends_rankings_of_a_bundle_and_writes_a_report(
    bundle_dir: Path, clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start({"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000}) as server:
        flags = ("--traffic", "rate=80,sizes=fixed:30", "--seconds", "1", "--warmup", "0.2")
        flags += ("--bundle", str(bundle_dir), "--max-lag-ms", "60000", "--json")
        patient = ("--budget-ms", "60000", "--slo-share", "0.99")
        assert main(["load", server.url, *flags, *patient, "--report", str(tmp_path)]) == 0
        made = json.loads(capsys.readouterr().out)
        assert made["ok"] == 1.0
        assert made["goodput"] == pytest.approx(30 * made["requests"], rel=0.01)
        assert list(made["mix"].values()) == [1.0]
        assert made["quality"] is not None
        assert 0 <= made["server_waited"] < 1
        assert {p.name for p in tmp_path.iterdir()} == {"report.html", "report.png", "report.json"}
        page, written = ((tmp_path / f"report.{kind}").read_text() for kind in ("html", "json"))
        assert "Embedding rows by memory tier" in page
        assert "policy priced" in page
        (tier,) = json.loads(written)["tiers"].values()
        assert tier["lookups"] >= 30 * made["requests"]
        assert tier["hit_rate"] == 1.0
        # nothing can be answered in a microsecond
        assert main(["load", server.url, *flags, "--budget-ms", "0.001", "--slo-share", "0.99"]) == SLO_MISSED
        replayed = ("--data", str(clicks), "--replay", "request_id")
        assert main(["load", server.url, *flags, *patient, *replayed]) == 0


@pytest.mark.long
def test_one_of_several_models_gets_the_load_and_its_own_quality(
    bundle_dir: Path, shop_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths of both models have one name."""
    models = f"shop={shop_dir},hotels={bundle_dir}"
    with start({"plans": models, "drain_grace_s": 0, "default_budget_ms": 60_000}) as server:
        flags = ("--rate", "80", "--seconds", "1", "--bundle", str(bundle_dir), "--max-lag-ms", "60000")
        for url in (f"{server.url}/v1/models/hotels", f"{server.url}/v1/models/hotels/rank"):
            assert main(["load", url, *flags, "--report", str(tmp_path), "--json"]) == 0
            made = json.loads(capsys.readouterr().out)
            (path,) = httpx.get(f"{server.url}/v1/models/hotels/paths").json()["paths"]
            assert made["mix"] == {path["name"]: 1.0}
            assert made["quality"] == pytest.approx(path["quality"], abs=1e-6)
            (tier,) = json.loads((tmp_path / "report.json").read_text())["tiers"].values()
            assert tier["lookups"] > 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--replay", "timestamp"), "--data and --replay need --bundle"),
        (("--slo-share", "0.99"), "--slo-share needs --budget-ms"),
    ],
)
def test_flags_name_the_flags_that_they_need(
    flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", "http://127.0.0.1:9/", "--rate", "1", *flags]) == 2
    assert says in capsys.readouterr().err
