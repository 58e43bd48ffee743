"""Bundles and servers that share a store: no answer is made of another's rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.reserve import reserve
from polyrec.models.schema.batch import F32
from polyrec.models.tiers.updates.update import AddOptions, TableUpdate, apply_update
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from tests.models.tiers.redis_server import RedisServer
from tests.server.conftest import Client, Request, administered
from tests.server.placing import placed_plan


def test_versions_with_rows_of_one_size_share_a_store_and_its_prefix(
    client_of: Callable[[Plan], Client],
    paged: Bundle,
    request_: Request,
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    model, encoder = reserve(paged, {"item": 2})
    out = write_bundle(tmp_path / "next", model, paged.manifest.representation, encoder, {}, {})
    store = RedisServer(tmp_path)

    def served(bundle: Bundle, fill: bool) -> Client:
        remote = {"url": store.url, "fill": fill, "timeout_ms": 5000}
        return client_of(
            placed_plan(bundle, tmp_path, lambda rows: {"host": 1, "remote": rows - 1}, remote=remote)
        )

    def gives_its_rows(client: Client) -> bool:
        given = client.predict(request_)
        if given["reason"] is None:
            np.testing.assert_allclose(given["predictions"], whole(request_), rtol=0, atol=1e-6)
        return given["reason"] is None

    try:
        old = served(paged, fill=True)
        assert gives_its_rows(old)
        following = served(load_bundle(out.path), fill=False)
        assert following.predict(request_)["reason"] == "failure"
        assert gives_its_rows(served(load_bundle(out.path), fill=True))
        assert gives_its_rows(following)
        assert gives_its_rows(old)
    finally:
        store.kill()


def test_servers_that_share_a_store_give_new_values_in_different_orders_rows_of_their_own(
    client: Client, opened: Callable[[Plan], Engine], paged: Bundle, request_: Request, tmp_path: Path
) -> None:
    """As after a restart of one of several, whose names end with it."""
    model, encoder = reserve(paged, {"item": 2})
    out = write_bundle(tmp_path / "next", model, paged.manifest.representation, encoder, {}, {})
    store = RedisServer(tmp_path)

    def served(fill: bool) -> Engine:
        remote = {"url": store.url, "fill": fill, "timeout_ms": 5000}
        return opened(
            placed_plan(
                load_bundle(out.path), tmp_path, lambda rows: {"host": 1, "remote": rows - 1}, remote=remote
            )
        )

    def add(engine: Engine, item: str, value: float) -> None:
        (stack,) = engine.serving.tiers.distinct
        update = {"item": TableUpdate(np.empty(0, np.int64), np.full((1, 64), value, np.float32), [item])}
        assert apply_update(stack, update, adding=AddOptions()).added == 1
        assert stack.settle()

    def score(engine: Engine, item: str) -> float:
        columns = {name: column[:1] for name, column in request_.columns.items()}
        body = orjson.dumps({"columns": {**columns, "item": [item]}})
        answer = administered(client, engine).post("/v1/predict", body).json()
        assert answer["reason"] is None
        return float(answer["predictions"][0])

    try:
        first, second = served(fill=True), served(fill=False)
        add(first, "a", 0.25)
        of_a = score(first, "a")
        add(second, "b", -0.5)
        of_b = score(second, "b")
        assert score(first, "a") == of_a != of_b
        add(second, "a", 0.25)
        add(first, "b", -0.5)
        assert [score(server, item) for server in (first, second) for item in "ab"] == [of_a, of_b] * 2
    finally:
        store.kill()
