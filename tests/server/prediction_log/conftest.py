"""A server with a prediction log, and clients that may give feedback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from polyrec.server.child import start

FEEDBACK_TOKEN, OTHER_TOKEN = "feedback-token-of-the-shop", "predictions-token-only"

LoggingServer = Callable[..., httpx.Client]


@pytest.fixture
def serve_logging(bundle_dir: Path, tmp_path: Path) -> Iterator[LoggingServer]:
    """Starts a server whose log is in tmp_path / "log"; its settings may be added to."""
    tokens = tmp_path / "tokens.json"
    clients = [
        {"name": "shop", "token": FEEDBACK_TOKEN, "rights": ["feedback"], "requests_per_second": 1000},
        {"name": "other", "token": OTHER_TOKEN},
    ]
    tokens.write_text(json.dumps({"clients": clients, "anonymous": {}}))
    with ExitStack() as stack:

        def serve(**settings: object) -> httpx.Client:
            model = {} if settings.keys() & {"plan", "plans"} else {"bundle": bundle_dir}
            child = stack.enter_context(
                start(
                    model
                    | {
                        "tokens": tokens,
                        "prediction_log": tmp_path / "log",
                        "prediction_log_flush_s": 0.05,
                        "drain_grace_s": 0,
                        "default_budget_ms": 60_000,
                    }
                    | settings
                )
            )
            return stack.enter_context(httpx.Client(base_url=child.url, timeout=300))

        yield serve


@pytest.fixture(scope="module")
def logging_http(bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of one server with a log, for requests that it rejects."""
    folder = tmp_path_factory.mktemp("rejecting")
    (folder / "tokens.json").write_text(
        json.dumps({"clients": [{"name": "shop", "token": FEEDBACK_TOKEN, "rights": ["feedback"]}]})
    )
    settings = {"bundle": bundle_dir, "tokens": folder / "tokens.json", "prediction_log": folder / "log"}
    with start(settings | {"drain_grace_s": 0}) as child, httpx.Client(base_url=child.url) as client:
        yield client
