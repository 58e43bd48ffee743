"""Executed batches, as the router is told of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import Batch
from polyrec.server.lanes.inline import InlineLane
from polyrec.server.lanes.lane import Executed, Settle
from tests.server.dispatch.test_dispatcher import Ranking, dispatcher, ranking, submit

__all__ = ["ranking"]


class WaitingLane(InlineLane):
    """A lane that waited for a processor, longer than its batches take or not at all."""

    waited_s = 0.0

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        def settle_later(outcome: Executed | Exception) -> None:
            assert isinstance(outcome, Executed)
            settle(replace(outcome, waited_s=self.waited_s))

        super().execute(path, batch, settle_later)


@pytest.mark.parametrize("waited_s", [0.0, 1e6])
def test_what_a_lane_waited_is_not_its_speed(bundle: Bundle, ranking: Ranking, waited_s: float) -> None:
    lane = WaitingLane("cpu", {"table@cpu": open_runtime("torch", bundle)})
    lane.waited_s = waited_s
    made, tally = dispatcher(bundle, lane, "inline")

    async def run() -> None:
        await submit(made, ranking("a", "b"))

    try:
        asyncio.run(run())
    finally:
        made.close()
    assert tally.batches == [(2, 1)]
    assert (made.router.state.lanes[0].busy_s > 0) == (waited_s == 0)
