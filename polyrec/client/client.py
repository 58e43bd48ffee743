"""Implements `Client`: predictions over HTTP, blocking, usable from any thread."""

from __future__ import annotations

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
from polyrec.client.deadline import DeadlineTransport
from polyrec.client.errors import InvalidRequest
from polyrec.client.rows import Rows

A = TypeVar("A")


class Client:
    """Requests predictions from a server. Thread-safe; keeps connections open; a context manager.

    url: address of the server, such as http://127.0.0.1:8000.
    token: sent as a bearer token.
    options: defaults for all calls: budget_ms, timeout_s, retries, priority and quality (see `Options`). Each
    call may override them.
    """

    def __init__(self, url: str, *, token: str | None = None, **options: Any) -> None:
        self._options = options_of(options)
        settings = http_settings(url, token)
        transport = DeadlineTransport(settings["verify"], settings["limits"])
        self._http = httpx.Client(transport=transport, **settings)

    def predict(self, rows: Rows, *, request_id: str | None = None, **options: Any) -> Prediction:
        """Predicts the probability of each row.

        rows: list of dicts, dict of columns, or a pandas, polars or Arrow table. Raises PredictionError.
        """
        return self._call(PREDICT, predict_body(rows), request_id, options, read_prediction)

    def rank(
        self,
        context: Mapping[str, Any] | None,
        candidates: Rows,
        top_k: int | None = None,
        *,
        request_id: str | None = None,
        **options: Any,
    ) -> Ranking:
        """Ranks the candidates of one context, best first. top_k: maximum number to return. Raises
        PredictionError.
        """
        body = rank_body(context, candidates, top_k)
        return self._call(RANK, body, request_id, options, read_ranking)

    def feedback(
        self,
        request_id: str,
        positives: Iterable[int] | None = None,
        *,
        labels: Iterable[float] | None = None,
        **options: Any,
    ) -> None:
        """Reports labels for an earlier request, for the server's prediction log.

        request_id: from the answer. positives: positions of the request's rows with label 1; the others have
        label 0.
        labels: alternatively, the label of each row. Raises PredictionError.
        """
        body = feedback_body(request_id, positives, labels)
        self._call(FEEDBACK, body, None, options, check_accepted)

    def ready(self) -> bool:
        """Returns whether the server is reachable and ready to predict."""
        try:
            return self._http.get("/readyz", timeout=self._options.timeout_s).status_code == 200
        except httpx.RequestError:
            return False

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(
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
                answer = self._http.post(page, content=body, headers=headers, timeout=left_s)
            except httpx.TimeoutException:
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
            time.sleep(wait_s)
