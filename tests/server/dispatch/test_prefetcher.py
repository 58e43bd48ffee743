"""Reading ahead in a server whose rows lie on disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import FeatureError
from polyrec.models.tiers.stack import TierStack
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from tests.server.conftest import Request
from tests.server.placing import placed_plan


def test_rows_are_read_ahead_for_queries_that_wait(
    opened: Callable[[Plan], Engine],
    paged: Bundle,
    requests: list[Request],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()
    gather = TierStack.gather

    def held(self: TierStack, *arguments: Any, **named: Any) -> int:
        release.wait(60)
        return gather(self, *arguments, **named)

    monkeypatch.setattr(TierStack, "gather", held)

    def pages(prefetch: bool) -> int:
        release.set()  # rows are looked up while it opens, too
        engine = opened(placed_plan(paged, tmp_path, lambda n: {"disk": n}, prefetch=prefetch))
        release.clear()
        serving = engine.serving
        stack = engine.stacks()["table@cpu"]

        async def run() -> None:
            answers = []
            for request in requests[:40]:
                rows = serving.json_decoder.predict(orjson.dumps({"columns": request.columns}))
                answers.append(serving.dispatcher.submit(rows, clock(), 60).payload.answer)
                for _ in range(4):  # turns of the loop, in which the first goes to the lane
                    await asyncio.sleep(0)
            until_s = clock() + 30
            while prefetch and not stack.figures().prefetched_pages and clock() < until_s:
                await asyncio.sleep(0.001)
            release.set()
            await asyncio.gather(*answers)

        asyncio.run(run())
        assert (serving.tiers.prefetcher is not None) == prefetch
        return stack.figures().prefetched_pages

    assert pages(prefetch=False) == 0
    assert pages(prefetch=True) > 0


def test_a_query_that_cannot_be_encoded_does_not_stop_prefetching(
    opened: Callable[[Plan], Engine], paged: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    engine = opened(placed_plan(paged, tmp_path, lambda n: {"disk": n}))
    serving, stack = engine.serving, engine.stacks()["table@cpu"]
    prefetcher = serving.tiers.prefetcher
    assert prefetcher is not None
    wrong = serving.json_decoder.predict(b'{"instances": [{"price_rank": 1e39}]}')
    with pytest.raises(FeatureError, match="price_rank"):
        wrong.encode(paged.encoder)
    prefetcher.request(None, wrong)
    for request in requests[:10]:
        prefetcher.request(0, serving.json_decoder.predict(orjson.dumps({"columns": request.columns})))
    prefetcher.close()
    assert stack.figures().prefetched_pages > 0
    assert not stack.views.newest.readers
