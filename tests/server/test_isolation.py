"""Requests of others in the same batch change no answer, through the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.server.child import ServerProcess
from tests.forking import start

ROUNDS = 6
PREDICT, RANK = "/v1/predict", "/v1/rank"
EXECUTIONS: list[tuple[str, str, str, float]] = [
    ("onnx", "int8", "inline", 1e-5),
    ("onnx", "int8", "process", 1e-5),
    ("torch", "bf16", "inline", 1e-5),
    ("onnx", "fp32", "inline", 1e-6),
]
"""Runtime, precision, kind of lane, and how far answers may differ."""

Call = tuple[str, Any]
HONEST: list[Call] = [
    (PREDICT, {"instances": [{"user_id": "1", "item": "2", "price": 80, "price_rank": 3, "position": 1}]}),
    (PREDICT, {"instances": [{"item": str(i), "price": 10.5 * i, "position": i} for i in range(12)]}),
    (PREDICT, {"instances": [{}, {"filters": ["spa"], "recent_items": ["3", "4"]}]}),
    (RANK, {"context": {"user_id": "5"}, "candidates": {"item": [str(i) for i in range(23)]}}),
    (RANK, {"context": {"city": "x"}, "candidates": {"item": ["7"], "price": [120], "price_rank": [2]}}),
]
HOSTILE: list[Call] = [
    (PREDICT, {"instances": [{"price_rank": 1e10}]}),
    (PREDICT, {"instances": [{"price_rank": -1e30, "price": 1e30}] * 40}),
    (PREDICT, {"instances": [{"price_rank": 1e-40, "position": 10**18, "recent_items": []}]}),
    (RANK, {"context": {}, "candidates": {"price_rank": [1e30, -1e6], "item": ["nobody", ""]}}),
    (PREDICT, {"instances": [{"price_rank": 1e37}]}),
]


@pytest.fixture(scope="module", params=EXECUTIONS, ids=lambda p: " ".join(p[:3]))
def served(request: pytest.FixtureRequest, wide_dir: Path) -> Iterator[tuple[ServerProcess, float]]:
    """A server of one path in one precision, and how far its answers may differ."""
    runtime, precision, lane, bound = request.param
    settings = {"runtime": runtime, "device": "cpu", "precision": precision, "lane": lane}
    with start({"bundle": wide_dir, "drain_grace_s": 0, "default_budget_ms": 60_000} | settings) as child:
        yield child, bound


def asked_at_once(url: str, calls: list[Call]) -> list[httpx.Response]:
    """The answers to requests that are sent together, on a connection each."""

    async def run() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=len(calls))
        async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
            return await asyncio.gather(*(client.post(p, content=orjson.dumps(b)) for p, b in calls))

    return asyncio.run(run())


def probabilities(answer: httpx.Response) -> list[float]:
    assert answer.status_code == 200, answer.text
    document: Mapping[str, Any] = answer.json()
    if "predictions" in document:
        return list(document["predictions"])
    return [score for _, score in sorted(zip(document["order"], document["scores"], strict=True))]


def counted(url: str) -> tuple[float, float]:
    """(batches executed, queries in them) so far."""
    samples = MetricSamples(httpx.get(f"{url}/metrics").text)
    return samples.total("polyrec_batch_rows_count"), samples.total("polyrec_batch_queries_total")


def test_attackers_in_the_batch_change_no_answer(served: tuple[ServerProcess, float]) -> None:
    server, bound = served
    alone = [probabilities(asked_at_once(server.url, [call])[0]) for call in HONEST]
    assert np.ptp(np.concatenate(alone)) > 0.01
    before = counted(server.url)
    calls = [call for pair in zip(HOSTILE * 2, HONEST * 2, strict=True) for call in pair]
    for _ in range(ROUNDS):
        answers = asked_at_once(server.url, calls)
        assert {a.status_code for a in answers} <= {200, 422}
        for i, honest in enumerate(answers[1::2]):
            np.testing.assert_allclose(probabilities(honest), alone[i % len(HONEST)], rtol=0, atol=bound)
    batches, queries = np.subtract(counted(server.url), before)
    assert batches < queries, "no two requests shared a batch"
