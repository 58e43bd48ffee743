from __future__ import annotations

import asyncio

import numpy as np
import pytest

from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, drive
from polyrec.loadtest.results.outcome import NO_PATH, Outcome
from tests.loadtest.serving import OK, Answer, serving

PATIENT = Limits(grace_s=30.0)


def driven(answer: Answer, due_s: np.ndarray, limits: Limits) -> tuple[Outcome, list[bytes]]:
    async def scenario() -> tuple[Outcome, list[bytes]]:
        async with serving(answer) as server:
            target = Target(server.url())
            load = load_of(target, due_s, 1.0, lambda i: b"%d" % i)
            outcome = await drive(target, load, limits)
            return outcome, server.bodies

    return asyncio.run(scenario())


def test_every_request_leaves_once_and_is_answered() -> None:
    due = np.sort(np.random.default_rng(1).uniform(0, 0.25, 500))
    outcome, received = driven(lambda i: OK, due, PATIENT)
    assert sorted(map(int, received)) == list(range(due.size))
    assert (outcome.status == 200).all()
    assert outcome.errors == {}
    assert (outcome.lag_s >= 0).all()
    assert (outcome.latency_s > outcome.lag_s).all()


def test_latency_counts_the_wait_for_requests_before() -> None:
    # all are due at once and share one connection: had latency run from the moment of sending, the
    # last would be as fast as the first
    outcome, received = driven(lambda i: OK, np.zeros(100), Limits(1, 1, 30.0))
    assert [int(body) for body in received] == list(range(100))
    assert (np.diff(outcome.latency_s) > 0).all()
    assert outcome.held_back == 99


def test_request_without_an_answer_is_named_and_does_not_delay_others() -> None:
    outcome, _ = driven(lambda i: None if i == 3 else OK, np.arange(10) / 100, Limits(4, 4, 0.5))
    assert (outcome.status == 0).sum() == 1
    assert list(outcome.errors.values()) == ["no answer within 0.5 s of the end"]
    assert np.isnan(outcome.latency_s).sum() == 1


@pytest.mark.parametrize("connections", [0, 9])
def test_connections_outside_their_limit_are_an_error(connections: int) -> None:
    with pytest.raises(LoadError, match=f"{connections} connections: give 1 to 8"):
        Limits(connections, 8)


def test_path_and_degraded_quality_of_each_answer_are_read() -> None:
    body = b'{"scores":[0.5],"path":"a@cpu","degraded":%s,"reason":"load"}'

    def answer(i: int) -> bytes:
        if i == 2:
            return b"HTTP/1.1 429 X\r\nContent-Length: 0\r\n\r\n"
        said = body % (b"true" if i % 2 else b"false")
        path = b"fast@cpu" if i % 2 else b"good@cpu"
        return b"HTTP/1.1 200 OK\r\nX-Polyrec-Path: %s\r\nContent-Length: %d\r\n\r\n%s" % (
            path,
            len(said),
            said,
        )

    outcome, _ = driven(answer, np.arange(6) / 50, Limits(1, 1, 30.0))
    names = [outcome.paths[p] if p != NO_PATH else None for p in outcome.path]
    assert names == ["good@cpu", "fast@cpu", None, "fast@cpu", "good@cpu", "fast@cpu"]
    assert outcome.degraded.tolist() == [False, True, False, True, False, True]


def test_bodies_of_answers_are_kept_by_request_where_asked() -> None:
    async def scenario() -> dict[int, bytes]:
        bodies: dict[int, bytes] = {}
        async with serving(lambda i: b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % i) as server:
            target = Target(server.url())
            load = load_of(target, np.arange(5) / 50, 1.0, lambda i: b"%d" % i)
            await drive(target, load, Limits(1, 1, 30.0), bodies)
        return bodies

    assert asyncio.run(scenario()) == {i: b"%d" % i for i in range(5)}
