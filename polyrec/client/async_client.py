"""Implements `AsyncClient`, which has the calls of `Client` for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import httpx

from polyrec.client.answers import (
    Prediction,
    Ranking,
    check_accepted,
    read_prediction,
    read_ranking,
)
from polyrec.client.bodies import FEEDBACK, PREDICT, RANK, feedback_body, predict_body, rank_body
from polyrec.client.call import Call, options_of
from polyrec.client.connection import BROKEN, http_settings
from polyrec.client.errors import InvalidRequest
from polyrec.client.rows import Rows

A = TypeVar("A")


class AsyncClient:
    """Requests predictions from a server in coroutines, many concurrently; an asynchronous context manager.

    Arguments and errors are those of `Client`.
    """

    def __init__(self, url: str, *, token: str | None = None, **options: Any) -> None:
        self._options = options_of(options)
        self._http = httpx.AsyncClient(**http_settings(url, token))

    async def predict(self, rows: Rows, *, request_id: str | None = None, **options: Any) -> Prediction:
        """Predicts the probability of each row, like `Client.predict`."""
        return await self._call(PREDICT, predict_body(rows), request_id, options, read_prediction)

    async def rank(
        self,
        context: Mapping[str, Any] | None,
        candidates: Rows,
        top_k: int | None = None,
        *,
        request_id: str | None = None,
        **options: Any,
    ) -> Ranking:
        """Ranks the candidates of one context, like `Client.rank`."""
        body = rank_body(context, candidates, top_k)
        return await self._call(RANK, body, request_id, options, read_ranking)

    async def feedback(
        self,
        request_id: str,
        positives: Iterable[int] | None = None,
        *,
        labels: Iterable[float] | None = None,
        **options: Any,
    ) -> None:
        """Reports labels for a request, like `Client.feedback`."""
        body = feedback_body(request_id, positives, labels)
        await self._call(FEEDBACK, body, None, options, check_accepted)

    async def ready(self) -> bool:
        """Returns whether the server is reachable and ready to predict."""
        try:
            return (await self._http.get("/readyz", timeout=self._options.timeout_s)).status_code == 200
        except httpx.RequestError:
            return False

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _call(
        self,
        page: str,
        body: bytes,
        request_id: str | None,
        options: Mapping[str, Any],
        read: Callable[[dict[str, Any], str | None, int], A],
    ) -> A:
        call = Call(options_of(options, self._options), time.monotonic, request_id)
        while True:
            headers, left_s = call.attempt()
            try:
                async with asyncio.timeout(left_s):
                    answer = await self._http.post(page, content=body, headers=headers, timeout=None)
            except TimeoutError:
                raise call.timed_out() from None
            except httpx.LocalProtocolError as e:
                raise InvalidRequest(f"a header cannot be sent: {e}") from None
            except BROKEN as e:
                wait_s = call.failed(f"no answer from {self._http.base_url}: {e}")
            else:
                found = call.answered(answer.status_code, answer.headers, answer.content)
                if isinstance(found, dict):
                    return call.read(read, found, answer.headers)
                wait_s = found
            await asyncio.sleep(wait_s)
