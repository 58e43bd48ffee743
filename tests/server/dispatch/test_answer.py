"""Settled answers are delivered once and in order, whatever a listener does."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

from polyrec.server.dispatch.answer import Answer, Outbox, Pending
from polyrec.server.errors import Defect


def answer(path: int = 0) -> Answer:
    return Answer(np.zeros(1, np.float32), path, None, 0.0, 0.0, 1, 0)


def test_settled_answers_are_delivered_by_the_loop_or_before() -> None:
    async def run() -> None:
        outbox = Outbox(asyncio.get_running_loop())
        delivered: list[int] = []
        pending = [Pending(outbox) for _ in range(4)]
        for one in pending:
            one.listen(lambda known: delivered.append(known.result().path))
        for path in (2, 0):
            pending[path].settle(answer(path))
            pending[path].settle(answer(9))  # ignored
        assert delivered == []
        outbox.deliver()
        assert delivered == [2, 0]
        pending[1].settle(answer(1))
        await asyncio.sleep(0)
        assert delivered == [2, 0, 1]
        assert outbox.open == {pending[3]}
        assert outbox.take_spent()[1] == 3
        assert outbox.take_spent() == (0.0, 0)

    asyncio.run(run())


def test_a_late_awaiter_or_listener_gets_the_answer() -> None:
    async def run() -> None:
        outbox = Outbox(asyncio.get_running_loop())
        early, late, failed = Pending(outbox), Pending(outbox), Pending(outbox)
        waiting = asyncio.ensure_future(early)
        await asyncio.sleep(0)
        for one in (early, late):
            one.settle(answer(7))
        failed.settle(Defect("no"))
        outbox.deliver()
        assert (await waiting).path == 7
        assert (await late).path == 7
        with pytest.raises(Defect):
            await failed
        heard: list[Pending] = []
        late.listen(heard.append)
        await asyncio.sleep(0)
        assert heard == [late]

    asyncio.run(run())


def test_a_failing_listener_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        outbox = Outbox(asyncio.get_running_loop())
        broken, sound = Pending(outbox), Pending(outbox)

        def fails(pending: Pending) -> None:
            raise OSError("the connection is on fire")

        delivered: list[Pending] = []
        broken.listen(fails)
        sound.listen(delivered.append)
        for one in (broken, sound):
            one.settle(answer())
        with caplog.at_level(logging.ERROR):
            outbox.deliver()
        assert delivered == [sound]
        assert "an answer could not be delivered" in caplog.text
        assert not outbox.open

    asyncio.run(run())
