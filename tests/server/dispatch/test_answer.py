"""Answers on their way: told once, in order, whatever one of the listeners does."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

from polyrec.server.dispatch.answer import Answer, Outbox, Pending
from polyrec.server.errors import Defect


def answer(path: int = 0) -> Answer:
    return Answer(np.zeros(1, np.float32), path, None, 0.0, 0.0, 1)


def test_what_is_settled_is_told_by_the_loop_or_before() -> None:
    async def run() -> None:
        outbox = Outbox(asyncio.get_running_loop())
        told: list[int] = []
        pending = [Pending(outbox) for _ in range(4)]
        for one in pending:
            one.listen(lambda known: told.append(known.result().path))
        for path in (2, 0):
            pending[path].settle(answer(path))
            pending[path].settle(answer(9))  # the first word counts
        assert told == []
        outbox.deliver()
        assert told == [2, 0]
        pending[1].settle(answer(1))
        await asyncio.sleep(0)
        assert told == [2, 0, 1]
        assert outbox.open == {pending[3]}
        assert outbox.spent()[1] == 3
        assert outbox.spent() == (0.0, 0)

    asyncio.run(run())


def test_who_awaits_or_listens_late_hears_it_too() -> None:
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


def test_a_listener_that_fails_keeps_nobody_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        outbox = Outbox(asyncio.get_running_loop())
        broken, sound = Pending(outbox), Pending(outbox)

        def fails(known: Pending) -> None:
            raise OSError("the connection is on fire")

        told: list[Pending] = []
        broken.listen(fails)
        sound.listen(told.append)
        for one in (broken, sound):
            one.settle(answer())
        with caplog.at_level(logging.ERROR):
            outbox.deliver()
        assert told == [sound]
        assert "an answer could not be told" in caplog.text
        assert not outbox.open

    asyncio.run(run())
