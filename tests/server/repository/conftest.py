"""A server of two models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from polyrec.server.child import ServerProcess
from tests.forking import start
from tests.server.placing import TOKEN


@pytest.fixture(scope="module")
def server(bundle_dir: Path, shop_dir: Path) -> Iterator[ServerProcess]:
    """A server of `hotels`, the default, and `shop`."""
    settings = {
        "plans": f"hotels={bundle_dir},shop={shop_dir}",
        "admin_token": TOKEN,
        "drain_grace_s": 0,
        "default_budget_ms": 60_000,
    }
    with start(settings) as child:
        yield child


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
        yield client
