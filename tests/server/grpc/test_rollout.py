"""A rollout splits calls over gRPC as those over HTTP, and leaves those that name a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from polyrec.server.child import ServerProcess
from tests.forking import start
from tests.server.grpc.conftest import Stub, infer_request
from tests.server.placing import ALLOWED, TOKEN

CALLS = 40
PATIENCE_S = 600
"""A canary's lane starts at low priority, so it opens slowly while other work holds the machine."""


@pytest.fixture(scope="module")
def server(bundle_dir: Path) -> Iterator[ServerProcess]:
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000, "grpc_port": 0}
    with start(settings | {"admin_token": TOKEN}) as child:
        yield child


@pytest.fixture
def arms(
    server: ServerProcess, bundle_dir: Path, request_: Any, tensors: Callable[[Any], Any]
) -> Iterator[Callable[..., list[str | None]]]:
    """Starts a rollout by a field, or none; the arms that answer calls with that metadata."""
    assert server.grpc is not None
    with (
        grpc.insecure_channel(server.grpc) as channel,
        httpx.Client(base_url=server.url, headers=ALLOWED, timeout=PATIENCE_S) as admin,
    ):

        def ask(by: str | None, users: list[str], **fields: Any) -> list[str | None]:
            body = {"plan": str(bundle_dir), "share": 0.5, "by": by}
            assert admin.post("/v1/admin/rollout/start", json=body).status_code == 200
            message = infer_request(tensors(request_), **fields)
            found = []
            for user in users:
                _, call = Stub(channel).method("ModelInfer").with_call(message, metadata=[("x-user", user)])
                found.append(dict(call.trailing_metadata()).get("x-polyrec-arm"))
            assert admin.post("/v1/admin/rollout/rollback").status_code == 200
            return found

        yield ask


@pytest.mark.long
def test_calls_are_split_by_metadata(arms: Callable[..., list[str | None]]) -> None:
    users = [f"u{i}" for i in range(CALLS)]
    first, again = arms("header:x-user", users), arms("header:x-user", users)
    assert first == again
    assert CALLS / 5 < first.count("canary") < CALLS * 4 / 5
    assert set(first) == {"stable", "canary"}


@pytest.mark.long
def test_calls_are_split_one_by_one_or_by_the_id_of_a_feature(
    arms: Callable[..., list[str | None]],
) -> None:
    assert arms(None, ["u"] * CALLS).count("canary") == pytest.approx(CALLS / 2, abs=2)
    assert len(set(arms("user_id", ["u"] * 4))) == 1


def test_a_call_that_names_a_version_gets_it(
    arms: Callable[..., list[str | None]], server: ServerProcess
) -> None:
    version = httpx.get(f"{server.url}/v2/models/dlrm").json()["versions"][0]
    assert set(arms(None, ["u"] * 6, model_version=version)) == {None}
