"""Provides the Python API of Polyrec; the command line is in `polyrec.cli`.

    polyrec.load("runs/table").rank(context, candidates)      a bundle in this process
    with polyrec.serve("plan.json") as server: ...            a server in a separate process
    polyrec.Client(url).predict(rows, budget_ms=10)           a client of any server; AsyncClient for asyncio

Names are imported on first use, so that `import polyrec` takes milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyrec.client.answers import Prediction, Ranking
    from polyrec.client.async_client import AsyncClient
    from polyrec.client.client import Client
    from polyrec.client.errors import (
        DeadlineExceeded,
        InvalidRequest,
        NotAllowed,
        Overloaded,
        PredictionError,
        Unavailable,
    )
    from polyrec.model import Model, load
    from polyrec.models.errors import PolyrecError
    from polyrec.serving import RunningServer, serve

_MODULES = {
    "AsyncClient": "client.async_client",
    "Client": "client.client",
    "DeadlineExceeded": "client.errors",
    "InvalidRequest": "client.errors",
    "Model": "model",
    "NotAllowed": "client.errors",
    "Overloaded": "client.errors",
    "PolyrecError": "models.errors",
    "Prediction": "client.answers",
    "PredictionError": "client.errors",
    "Ranking": "client.answers",
    "RunningServer": "serving",
    "Unavailable": "client.errors",
    "load": "model",
    "serve": "serving",
}
__all__ = [
    "AsyncClient",
    "Client",
    "DeadlineExceeded",
    "InvalidRequest",
    "Model",
    "NotAllowed",
    "Overloaded",
    "PolyrecError",
    "Prediction",
    "PredictionError",
    "Ranking",
    "RunningServer",
    "Unavailable",
    "load",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'polyrec' has no attribute '{name}'")
    return getattr(import_module(f"polyrec.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
