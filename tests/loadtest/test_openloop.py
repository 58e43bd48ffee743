from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from loadtest.connection import LoadError, Target
from loadtest.openloop import COULD_NOT_KEEP_UP, Limits, Outcome, bodies, drive, main, poisson
from tests.loadtest.serving import OK, Answer, serving

PATIENT = Limits(grace_s=30.0)


def driven(answer: Answer, due_s: np.ndarray, limits: Limits) -> tuple[Outcome, list[bytes]]:
    async def scene() -> tuple[Outcome, list[bytes]]:
        async with serving(answer) as server:
            outcome = await drive(Target(server.url()), due_s, lambda i: b"%d" % i, limits)
            return outcome, server.bodies

    return asyncio.run(scene())


def test_schedule_is_a_poisson_process_and_a_function_of_the_seed() -> None:
    rate, seconds = 500.0, 400.0
    due = poisson(rate, seconds, np.random.default_rng(7))
    assert np.array_equal(due, poisson(rate, seconds, np.random.default_rng(7)))
    assert (np.diff(due) >= 0).all()
    assert 0 <= due[0] <= due[-1] < seconds
    counts = np.histogram(due, bins=4000, range=(0, seconds))[0]
    assert counts.mean() == pytest.approx(rate * seconds / 4000, rel=0.02)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.1)
    gaps = np.diff(due)
    assert (gaps > 1 / rate).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_every_request_leaves_once_and_is_answered() -> None:
    due = poisson(2000, 0.25, np.random.default_rng(1))
    outcome, received = driven(lambda i: OK, due, PATIENT)
    assert sorted(map(int, received)) == list(range(due.size))
    assert (outcome.status == 200).all()
    assert outcome.offences == {}
    assert (outcome.lag_s >= 0).all()
    assert (outcome.latency_s > outcome.lag_s).all()


def test_latency_counts_the_wait_for_requests_before() -> None:
    # all are due at once and share one connection: had latency run from the moment of sending, the
    # last would be as fast as the first
    outcome, received = driven(lambda i: OK, np.zeros(100), Limits(1, 1, 30.0))
    assert [int(body) for body in received] == list(range(100))
    assert (np.diff(outcome.latency_s) > 0).all()
    assert outcome.held_back == 99


def test_request_without_an_answer_is_named_and_does_not_hold_others_up() -> None:
    outcome, _ = driven(lambda i: None if i == 3 else OK, np.arange(10) / 100, Limits(4, 4, 0.5))
    assert (outcome.status == 0).sum() == 1
    assert list(outcome.offences.values()) == ["no answer within 0.5 s of the end"]
    assert np.isnan(outcome.latency_s).sum() == 1


def test_bodies_are_taken_in_turn(tmp_path: Path) -> None:
    lines = tmp_path / "bodies.jsonl"
    lines.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    each = bodies(None, str(lines))
    assert [each(i) for i in range(3)] == [b'{"a": 1}', b'{"a": 2}', b'{"a": 1}']
    assert bodies(str(lines), None)(5) == lines.read_bytes()
    assert bodies(None, None)(0) is None


def test_body_that_cannot_be_read_or_is_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot read body"):
        bodies(str(tmp_path / "absent"), None)
    (tmp_path / "empty").touch()
    with pytest.raises(LoadError, match="is empty"):
        bodies(None, str(tmp_path / "empty"))


@pytest.mark.parametrize("connections", [0, 9])
def test_connections_outside_their_limit_are_refused(connections: int) -> None:
    with pytest.raises(LoadError, match=f"{connections} connections: give 1 to 8"):
        Limits(connections, 8)


def test_a_mistake_is_one_line_and_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ftp://host/", "--rate", "1"]) == 2
    assert capsys.readouterr().err == "openloop: url 'ftp://host/': give http://host:port/path\n"


def command(*arguments: str) -> tuple[int, str, str, list[bytes]]:
    """Runs the driver as a user does, as a process of its own."""

    async def scene() -> tuple[int, str, str, list[bytes]]:
        async with serving(lambda i: OK) as server:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "loadtest.openloop", server.url("/v1/rank"), *arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate()
            assert process.returncode is not None
            return process.returncode, out.decode(), err.decode(), server.bodies

    return asyncio.run(scene())


def test_command_reports_as_json(tmp_path: Path) -> None:
    body = tmp_path / "rank.json"
    body.write_bytes(b'{"candidates": {}}')
    status, out, err, received = command(
        *("--rate", "200", "--seconds", "1", "--warmup", "0.2", "--max-lag-ms", "60000"),
        *("--body", str(body), "--json"),
    )
    assert (status, err) == (0, "")
    made = json.loads(out)
    assert set(received) == {b'{"candidates": {}}'}
    assert made["errors"] == 0
    assert 0 < made["requests"] < len(received)
    assert made["p50_ms"] <= made["p99_ms"] <= made["p99_9_ms"] <= made["max_ms"]


def test_command_prints_no_figures_when_it_could_not_keep_up() -> None:
    status, out, err, _ = command("--rate", "200", "--seconds", "0.5", "--max-lag-ms", "0")
    assert status == COULD_NOT_KEEP_UP
    assert out == ""
    assert err.startswith("openloop: the driver could not keep up: ")
    assert err.count("\n") == 1
