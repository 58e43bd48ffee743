"""The repository extension on a server of a single model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.forking import start
from tests.server.placing import TOKEN


@pytest.fixture(scope="module")
def single(bundle_dir: Path) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with (
        start({"bundle": bundle_dir, "admin_token": TOKEN, "drain_grace_s": 0}) as child,
        httpx.Client(base_url=child.url, timeout=60, headers=headers) as client,
    ):
        yield client


@pytest.mark.parametrize("action", ["load", "unload"])
def test_the_only_model_is_neither_loaded_nor_unloaded(single: httpx.Client, action: str) -> None:
    answer = single.post(f"/v2/repository/models/dlrm/{action}")
    assert (answer.status_code, "has a single model" in answer.text) == (409, True)
    assert single.post(f"/v2/repository/models/other/{action}").status_code == 404
    (entry,) = single.post("/v2/repository/index").json()
    assert entry["state"] == "READY"
