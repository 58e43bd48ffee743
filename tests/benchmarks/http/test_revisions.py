from __future__ import annotations

import asyncio
from itertools import cycle

import pytest

from benchmarks.http.revisions import FIGURES, table
from benchmarks.http.serve_throughput import closed_loop


def test_ratios_above_one_mean_faster_now_for_rates_and_for_times() -> None:
    before = [dict.fromkeys(FIGURES, 1000.0)] * 2
    after = [dict.fromkeys(FIGURES, 2000.0)] * 2
    rows = [line.split(" | ")[-1] for line in table(before, after).splitlines()[2:]]
    assert [row.split()[0] for row in rows] == ["2.000", "0.500", "2.000", "0.500", "0.500"]


async def _ask(answers: list[bytes]) -> int:
    """Serves those answers, one a request, in two pieces each; returns how many were counted."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in cycle(answers):
            if not await reader.read(100):
                break
            writer.write(answer[:20])
            await asyncio.sleep(0)
            writer.write(answer[20:])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        asked = closed_loop("127.0.0.1", port, cycle([b"request"]), 1, 0.05, (b"200", b"504"))
        return 1 + len(await asyncio.wait_for(asked, 30))


def answer(status: int) -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-length: 4\r\n\r\nbody".encode()


def test_answers_of_expected_status_codes_are_counted() -> None:
    assert asyncio.run(_ask([answer(200), answer(504)])) >= 1


def test_another_status_code_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="500"):
        asyncio.run(_ask([answer(500)]))
