"""Queries that make their batch fail, on real lanes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import FeatureError
from polyrec.models.runtimes.runtime import Runtime
from polyrec.server.dispatch.executor import DEFECTS_UNTIL_LANE_IS_SUSPECT
from polyrec.server.errors import Defect, Invalid
from tests.server.dispatch.dispatching import Make, Ranking, Troubled, items, submit

Breaking = Callable[[str], Troubled]


@pytest.fixture
def breaking(bundle: Bundle, runtime: Runtime, ranking: Ranking) -> Breaking:
    """Makes a runtime that fails on batches with an item."""

    def breaking(item: str) -> Troubled:
        rank = int(ranking(item).encode(bundle.encoder).candidate.ranks[0, 0])
        return Troubled(runtime, breaks_at_rank=rank)

    return breaking


def test_a_query_that_breaks_a_batch_fails_alone(
    bundle: Bundle, breaking: Breaking, make: Make, ranking: Ranking, caplog: pytest.LogCaptureFixture
) -> None:
    known = items(bundle, 3)

    async def run() -> None:
        lane, tally = make(breaking(known[1]))
        pending = [submit(lane, ranking(item)) for item in known]
        with caplog.at_level(logging.CRITICAL, "polyrec.dispatcher"):
            answers = await asyncio.gather(*pending, return_exceptions=True)
        assert isinstance(answers[1], Defect)
        assert "on fire" not in str(answers[1])
        assert [a.batch_rows for i, a in enumerate(answers) if i != 1] == [1, 1]
        assert (await submit(lane, ranking(known[0]))).batch_rows == 1
        assert len(tally.batches) == 3

    asyncio.run(run())


def test_a_query_that_fails_in_a_batch_of_its_own_is_answered(
    bundle: Bundle, breaking: Breaking, make: Make, ranking: Ranking, caplog: pytest.LogCaptureFixture
) -> None:
    """Fewer in a row than make the lane suspect: each is the query's own failure."""
    sound, bad = items(bundle, 2)

    async def run() -> None:
        lane, _ = make(breaking(bad))
        with caplog.at_level(logging.CRITICAL, "polyrec.dispatcher"):
            for _ in range(2):
                for _ in range(DEFECTS_UNTIL_LANE_IS_SUSPECT - 1):
                    with pytest.raises(Defect):
                        await asyncio.wait_for(submit(lane, ranking(bad)), 30)
                await submit(lane, ranking(sound))

    asyncio.run(run())


def test_every_query_is_answered_where_many_break_before_one_succeeds(
    bundle: Bundle, breaking: Breaking, make: Make, ranking: Ranking, caplog: pytest.LogCaptureFixture
) -> None:
    """So many that the lane would be suspect, had not the last one shown that it works."""
    sound, bad = items(bundle, 2)

    async def run() -> None:
        lane, _ = make(breaking(bad))
        # groups are executed from the last one
        pending = [submit(lane, ranking(item)) for item in [sound, *[bad] * DEFECTS_UNTIL_LANE_IS_SUSPECT]]
        with caplog.at_level(logging.CRITICAL, "polyrec.dispatcher"):
            answered = asyncio.gather(*pending, return_exceptions=True)
            answers = await asyncio.wait_for(answered, 20)
        assert answers[0].batch_rows == 1
        assert [type(answer) for answer in answers[1:]] == [Defect] * DEFECTS_UNTIL_LANE_IS_SUSPECT
        assert lane.waiting == 0

    asyncio.run(run())


def test_a_query_that_cannot_be_encoded_fails_and_the_others_stay_one_batch(
    make: Make, ranking: Ranking
) -> None:
    too_long = ranking("a")
    names = too_long.names[0]
    too_long.context = [([str(i) for i in range(1000)],) if n == "filters" else None for n in names]

    async def run() -> None:
        lane, tally = make()
        pending = [submit(lane, ranking("a")), submit(lane, too_long), submit(lane, ranking("b", "c"))]
        answers = await asyncio.gather(*pending, return_exceptions=True)
        assert isinstance(answers[1], FeatureError)
        assert "filters" in str(answers[1])
        assert tally.batches == [(3, 2)]

    asyncio.run(run())


@pytest.mark.parametrize("nonsense", [np.nan, np.inf])
def test_a_probability_that_is_no_number_is_rejected_for_its_query_only(
    runtime: Runtime, make: Make, ranking: Ranking, nonsense: float
) -> None:
    async def run() -> None:
        lane, _ = make(Troubled(runtime, answers=nonsense))
        pending = [submit(lane, ranking("a", "b")), submit(lane, ranking("c"))]
        bad, good = await asyncio.gather(*pending, return_exceptions=True)
        assert isinstance(bad, Invalid)
        assert np.isfinite(good.probabilities).all()

    asyncio.run(run())
