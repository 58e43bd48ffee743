from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from polyrec.loadtest.drivers.connection import LoadError, Target
from tests.loadtest.serving import OK, Answer, serving

pytest.importorskip("mlperf_loadgen", reason="MLPerf LoadGen is not installed")

from polyrec.loadtest.drivers.loadgen import Verdict, drive, main, read_summary

BUSY = b"HTTP/1.1 429 X\r\nContent-Length: 0\r\n\r\n"


def driven(answer: Answer, logs: Path) -> tuple[Verdict, list[bytes]]:
    async def scenario() -> tuple[Verdict, list[bytes]]:
        async with serving(answer) as server:
            target = Target(server.url())
            requests = [target.request(b"%d" % i) for i in range(20)]

            def run() -> Verdict:
                return drive(target, requests, qps=900, slo_s=30.0, seconds=1.0, logs=logs, connections=4)

            return await asyncio.to_thread(run), server.bodies

    return asyncio.run(scenario())


def test_loadgen_drives_a_server_and_judges_the_run(tmp_path: Path) -> None:
    verdict, bodies = driven(lambda i: OK, tmp_path)
    assert verdict.queries == len(bodies) >= 700
    assert set(bodies) <= {b"%d" % i for i in range(20)}
    assert verdict.failed == 0
    assert 0 < verdict.p50_ms <= verdict.p90_ms <= verdict.p99_ms <= verdict.max_ms
    # it wants some hundred queries before it believes in a 99th percentile
    assert (verdict.valid, verdict.reasons) == (True, ())


def test_rejections_are_counted_though_loadgen_counts_them_as_answers(tmp_path: Path) -> None:
    verdict, bodies = driven(lambda i: BUSY if i % 2 else OK, tmp_path)
    assert verdict.failed == len(bodies) // 2


def test_a_summary_is_parsed_and_other_text_is_an_error() -> None:
    text = """
Completed samples per second    : 213.26
Result is : INVALID
  Performance constraints satisfied : NO
  Min duration satisfied : Yes
  Early stopping satisfied: NO
Max latency (ns)                : 201866214
50.00 percentile latency (ns)   : 1409108
90.00 percentile latency (ns)   : 101795395
99.00 percentile latency (ns)   : 185602305
"""
    verdict = read_summary(text, queries=436, failed=2)
    assert (verdict.valid, verdict.queries, verdict.failed) == (False, 436, 2)
    assert verdict.reasons == ("Performance constraints satisfied : NO", "Early stopping satisfied: NO")
    assert verdict.p99_ms == pytest.approx(185.602305)
    with pytest.raises(LoadError, match="has no result"):
        read_summary("", 0, 0)


def test_no_server_is_an_error_of_one_line(bundle_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--bundle", str(bundle_dir), "--qps", "10", "--samples", "3")
    assert main(["http://127.0.0.1:9", *flags]) == 2
    assert "loadgen: cannot connect to 127.0.0.1:9" in capsys.readouterr().err
