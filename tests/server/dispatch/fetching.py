"""Fetches from a store that has rows 2,100 to 2,999 of a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.view import View
from polyrec.server.dispatch.fetcher import Fetcher
from tests.models.tiers.redis_server import RedisServer
from tests.models.tiers.worlds import encoder_of, flat_weight, world

ENCODER = encoder_of({"a": 3000, "b": 500})
REMOTE = np.arange(2100, 3000)
"""Rows of table a that `opened` leaves to the store."""
WAIT_S = 60.0

Run = Callable[[Coroutine[None, None, None]], None]


def assert_lost(layer: FetchedRows | None) -> None:
    assert layer is not None
    assert layer.lost.all()


def opened(store: RedisServer, folder: Path, timeout_ms: int) -> TierStack:
    remote = {"url": store.url, "timeout_ms": timeout_ms, "fill": True}
    return world(ENCODER, folder, (0.0, 0.2, 0.5), remote=remote)


def start(
    fetcher: Fetcher, stack: TierStack, view: View, wanted: Sequence[I64]
) -> list[asyncio.Future[FetchedRows | None]]:
    """Starts fetches; call it on the event loop."""
    found: list[asyncio.Future[FetchedRows | None]] = []
    for rows in wanted:
        found.append(asyncio.get_running_loop().create_future())
        fetcher.fetch(stack.ahead, view, rows, found[-1].set_result)
    return found


async def fetch(
    fetcher: Fetcher, stack: TierStack, view: View, wanted: Sequence[I64], timeout_s: float = WAIT_S
) -> list[FetchedRows | None]:
    """Fetches rows, and waits for them."""
    return await asyncio.wait_for(asyncio.gather(*start(fetcher, stack, view, wanted)), timeout_s)


def assert_rows(layers: Sequence[FetchedRows | None], wanted: Sequence[I64]) -> None:
    flat = flat_weight(ENCODER).numpy()
    for layer, rows in zip(layers, wanted, strict=True):
        assert layer is not None
        np.testing.assert_array_equal(layer.rows, rows)
        np.testing.assert_array_equal(layer.values.view(np.float32), flat[rows])
