"""Bundles that share a store: no answer is made of another's rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.reserve import reserve
from polyrec.models.schema.batch import F32
from polyrec.planner.plan import Plan
from tests.models.tiers.redis_server import RedisServer
from tests.server.conftest import Client, Request
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
