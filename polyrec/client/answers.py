"""Defines the answers of `predict` and `rank`: arrays, and the path that computed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Fields of every answer.

    path: the execution path that answered (`table@cpu`).
    quality: the path's information gain, None if unknown.
    degraded: whether a path of lower quality than the best answered. reason: why: load, deadline, failure or
    probe.
    request_id: assigned by the server; None in process.
    attempts: number of requests sent for it; 0 in process.
    """

    path: str
    quality: float | None = None
    degraded: bool = False
    reason: str | None = None
    request_id: str | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Answer):
    """Probabilities, float32 [rows], in the order of the rows."""

    probabilities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.probabilities)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Answer):
    """Candidates of one context, best first.

    order: int64 [top_k], positions in the given candidates. scores: float32 [top_k], in the same order.
    """

    order: NDArray[np.int64]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.order)


def read_prediction(document: dict[str, Any], request_id: str | None, attempts: int) -> Prediction:
    """Parses an answer of /v1/predict. Raises KeyError, TypeError or ValueError if it is not one."""
    probabilities = np.array(document["predictions"], np.float32)
    return Prediction(probabilities=probabilities, **_origin(document, request_id, attempts))


def read_ranking(document: dict[str, Any], request_id: str | None, attempts: int) -> Ranking:
    """Parses an answer of /v1/rank. Raises KeyError, TypeError or ValueError if it is not one."""
    order, scores = np.array(document["order"], np.int64), np.array(document["scores"], np.float32)
    return Ranking(order=order, scores=scores, **_origin(document, request_id, attempts))


def check_accepted(document: dict[str, Any], request_id: str | None, attempts: int) -> None:
    """Checks an answer of /v1/feedback. Raises KeyError if it is not one."""
    document["accepted"]


def _origin(document: dict[str, Any], request_id: str | None, attempts: int) -> dict[str, Any]:
    found = {key: document[key] for key in ("path", "quality", "degraded", "reason")}
    return found | {"request_id": request_id, "attempts": attempts}
