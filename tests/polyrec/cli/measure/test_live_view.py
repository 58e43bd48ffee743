from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyrec
from polyrec.cli.main import main
from polyrec.cli.measure.interval import PHASES, Interval, LaneRow, PathRow, interval
from polyrec.cli.measure.live_view import COLOR, fitted, lines, one_model
from polyrec.loadtest.drivers.server_pages import read_metrics
from tests.forking import start


@pytest.fixture(scope="module")
def server(bundle_dir: Path) -> Iterator[polyrec.RunningServer]:
    with polyrec.serve(bundle_dir, default_budget_ms=60_000) as server:
        yield server


def test_an_interval_counts_what_happened_in_it(server: polyrec.RunningServer) -> None:
    row = {"item": "a"}
    with server.client() as client:
        client.predict([row])
        before = read_metrics(server.url)
        for _ in range(8):
            client.predict([row] * 3)
        for _ in range(2):
            with pytest.raises(polyrec.InvalidRequest):
                client.predict([{"shade": 1}])
        with pytest.raises(polyrec.DeadlineExceeded):
            client.predict([row], budget_ms=1, retries=0)
        after = read_metrics(server.url)
    found = interval(before, after, seconds=2.0)
    assert found.outcomes["ok"] == 4.0
    assert found.outcomes["invalid"] == 1.0
    assert found.rows_rate == pytest.approx(12, abs=0.5)
    assert 8 / 9 - 1e-9 <= found.in_slo <= 1
    assert 0 < found.p50_s <= found.p99_s
    assert [*found.phases_s] == ["parse", "queue", "encode", "embed", "dense", "serialise"]
    assert all(mean_s > 0 for mean_s in found.phases_s.values())
    assert sum(found.phases_s.values()) < 60
    (path,) = found.paths
    assert (path.name, path.share, path.degraded_rate) == ("table@cpu", 1.0, 0.0)
    (lane,) = found.lanes
    assert (lane.up, lane.breaker) == (True, "closed")
    shown = "\n".join(lines(found, server.url, color=False))
    assert "\x1b" not in shown
    assert "table@cpu" in shown
    assert "closed" in shown
    slowest = max(found.phases_s, key=lambda phase: found.phases_s[phase])
    assert f"phases of a request, ms: {slowest} {1e3 * found.phases_s[slowest]:.2f}  " in shown


def test_an_idle_interval_says_so(server: polyrec.RunningServer) -> None:
    samples = read_metrics(server.url)
    assert "no requests" in lines(interval(samples, samples, 1.0), server.url, color=False)[1]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_nothing_is_wider_or_longer_than_the_terminal(columns: int) -> None:
    path = PathRow("hybrid-materialized.w64.int8@cpu", 12_345.6, 1.0, 0.0123, 1.2345, 1234.5, 0.2571)
    lane = LaneRow("cpu.0", "cpu", True, 0.5, "closed", 1.0)
    missed = dict.fromkeys(("late", "overloaded", "expired", "unavailable", "error"), 12_345.6)
    busy = Interval(
        *("a-bundle-of-some-length", "static:hybrid-materialized.w64.int8@cpu", 2.0, 123_456.7, 2_345_678),
        *({"ok": 1.0} | missed, 0.5, 0.99, 0.0123, 1.2345, 123_456.7),
        *(dict.fromkeys(PHASES, 1.2345), 12_345, 12_345, 2_345_678),
        *((path,) * 20, (lane,) * 8),
    )
    shown = fitted(lines(busy, "http://127.0.0.1:8000", color=True, columns=columns), columns, rows=24)
    seen = [COLOR.sub("", line) for line in shown]
    assert max(map(len, seen)) <= columns
    assert len(shown) == 24
    assert seen[-1].startswith("...")
    if columns >= 80:
        # the last column is whole, and the name keeps the end by which paths differ
        assert sum(line.endswith(" 0.2571") and "int8@cpu" in line for line in seen) > 10


def test_one_interval_is_printed(server: polyrec.RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", server.url, "--interval", "0.1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["paths"][0]["name"] == "table@cpu"
    assert printed["in_slo"] is None
    assert main(["top", server.url, "--interval", "0.1", "--once"]) == 0
    assert "table@cpu" in capsys.readouterr().out


def test_a_terminal_is_redrawn_and_left_as_it_was(server: polyrec.RunningServer) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "polyrec", "top", server.url, "--interval", "0.1"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE) as view:
        os.close(theirs)
        seen = b""
        deadline = time.monotonic() + 60
        while seen.count(b"\x1b[J") < 2 and time.monotonic() < deadline:
            seen += os.read(ours, 65536)
        view.send_signal(signal.SIGINT)
        while b"\x1b[?1049l" not in seen and time.monotonic() < deadline:
            seen += os.read(ours, 65536)
        assert view.wait(30) == 0
    os.close(ours)
    assert seen.startswith(b"\x1b[?1049h")
    assert seen.count(b"requests/s") >= 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "not a url"])
def test_no_server_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url, "--once"]) == 2
    said = capsys.readouterr().err
    assert f"no metrics at {url}" in said
    assert said.count("\n") == 1


def test_a_server_that_is_not_http_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x00\x00\x06\x04 as a gRPC port answers\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert main(["top", f"http://127.0.0.1:{listener.getsockname()[1]}", "--once"]) == 2
        thread.join()
    assert "the answer is not HTTP/1.1, or ends early" in capsys.readouterr().err


def test_one_of_several_models_is_shown(bundle_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"plans": f"news={bundle_dir},shop={bundle_dir}", "drain_grace_s": 0}
    with start(settings) as server:
        before = read_metrics(server.url)
        with polyrec.Client(server.url, budget_ms=60_000) as client:
            client.predict([{"item": "a"}])
        after = read_metrics(server.url)
        found = {
            name: interval(one_model(before, name), one_model(after, name), seconds=1.0)
            for name in ("news", "shop")
        }
        assert main(["top", server.url, "--once", "--interval", ".01", "--model", "shop"]) == 0
        assert f"shop at {server.url}, policy priced, one of several models" in capsys.readouterr().out
        assert main(["top", server.url, "--model", "none"]) == 2
        assert "no model 'none'; there are 'news', 'shop'" in capsys.readouterr().err
    # paths and lanes have the same names in both
    assert (found["news"].rate, found["shop"].rate) == (1.0, 0.0)
    assert found["news"].paths[0].rate == 1.0
    assert [lane.correction for one in found.values() for lane in one.lanes] == pytest.approx([1, 1], abs=0.9)
    assert one_model(after, None).models == ["news"]
