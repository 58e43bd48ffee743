"""Restarts of lanes: retried until they succeed, canceled when the supervisor closes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from polyrec.models.runtimes.runtime import Runtime
from polyrec.server.dispatch.supervisor import LaneSupervisor
from polyrec.server.lanes.inline import InlineLane


class FailingLane(InlineLane):
    """A lane whose first restarts fail."""

    def __init__(self, failures: int) -> None:
        runtimes: dict[str, Runtime] = {}
        super().__init__("cpu", runtimes)
        self.failures = failures

    async def restart(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise OSError("no memory")


def test_a_restart_is_retried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> int:
        restarted = asyncio.get_running_loop().create_future()
        supervisor = LaneSupervisor([FailingLane(0), FailingLane(1)], restarted.set_result)
        supervisor.restart(1)
        index: int = await asyncio.wait_for(restarted, 30)
        return index

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(run()) == 1
    assert "lane cpu does not start: no memory; again in 0.05 s" in caplog.text
    assert "lane cpu is back" in caplog.text


def test_the_delays_between_attempts_grow_to_a_bound(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrec.server.dispatch.supervisor.FIRST_RESTART_DELAY_S", 0.001)
    monkeypatch.setattr("polyrec.server.dispatch.supervisor.MAX_RESTART_DELAY_S", 0.003)

    async def run() -> None:
        restarted = asyncio.Event()
        supervisor = LaneSupervisor([FailingLane(4)], lambda lane: restarted.set())
        supervisor.restart(0)
        await asyncio.wait_for(restarted.wait(), 30)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    delays = [record.getMessage().rpartition("again in ")[2] for record in caplog.records]
    assert delays == ["0.001 s", "0.002 s", "0.003 s", "0.003 s"]


def test_closing_cancels_restarts() -> None:
    async def run() -> None:
        supervisor = LaneSupervisor([FailingLane(10**9)], lambda lane: None)
        supervisor.restart(0)
        (restart,) = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.sleep(0)
        supervisor.close()
        await asyncio.wait([restart])
        assert restart.cancelled()

    asyncio.run(run())
