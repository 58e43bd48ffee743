"""A server with a prediction log, and clients that may give feedback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.forking import start

FEEDBACK_TOKEN, OTHER_TOKEN = "feedback-token-of-the-shop", "predictions-token-only"

LoggingServer = Callable[..., httpx.Client]


def write_tokens(folder: Path) -> Path:
    """The tokens of a client that may give feedback and of another; anybody may ask for predictions."""
    clients = [
        {"name": "shop", "token": FEEDBACK_TOKEN, "rights": ["feedback"], "requests_per_second": 1000},
        {"name": "other", "token": OTHER_TOKEN},
    ]
    (folder / "tokens.json").write_text(json.dumps({"clients": clients, "anonymous": {}}))
    return folder / "tokens.json"


@pytest.fixture
def serve_logging(bundle_dir: Path, tmp_path: Path) -> Iterator[LoggingServer]:
    """Starts a server whose log is in tmp_path / "log"; its settings may be added to."""
    tokens = write_tokens(tmp_path)
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
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prediction log of `logging_http`."""
    return tmp_path_factory.mktemp("logged") / "log"


@pytest.fixture(scope="module")
def logging_http(bundle_dir: Path, log_folder: Path) -> Iterator[httpx.Client]:
    """A client of a module's server with a log, for tests that look for their own requests only."""
    settings = {"bundle": bundle_dir, "tokens": write_tokens(log_folder.parent), "prediction_log": log_folder}
    quick = {"prediction_log_flush_s": 0.05, "drain_grace_s": 0, "default_budget_ms": 60_000}
    with start(settings | quick) as child, httpx.Client(base_url=child.url, timeout=300) as client:
        yield client
