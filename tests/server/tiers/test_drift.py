"""Tests the answers that clients get while rows follow their popularity."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import F32
from polyrec.models.tiers.updates.drift import Drift
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.http.app import create_app
from tests.server.conftest import Client, Request
from tests.server.placing import placed_plan


def test_no_wrong_row_is_served_while_rows_follow_their_popularity(
    client_of: Callable[[Plan], Client],
    paged: Bundle,
    requests: list[Request],
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    client = client_of(placed_plan(paged, tmp_path, lanes=2, drift_s=0.02))
    # popular as calibration never saw it: the last of the data, again and again
    chosen = [r for r in requests if r.table.num_rows > 2][-6:]
    bodies = [orjson.dumps({"columns": r.columns}) for r in chosen]
    right = [whole(r) for r in chosen]
    for _ in range(600):  # a timer reorders rows meanwhile, as often as a busy machine lets it
        calls = [("POST", "/v1/predict", {"content": b}) for b in bodies for _ in range(8)]
        for i, answer in enumerate(client.together(calls)):
            assert answer.status_code == 200
            given = np.array(answer.json()["predictions"], np.float32)
            np.testing.assert_allclose(given, right[i // 8], atol=2e-6)
        if client.metric("polyrec_embedding_orders_total") > 3:
            break
    assert client.metric("polyrec_embedding_orders_total") > 3
    assert client.metric("polyrec_embedding_moved_rows_total") > 3


def test_unknown_values_are_counted_in_every_order(
    opened: Callable[[Plan], Engine], paged: Bundle, tmp_path: Path, client: Client
) -> None:
    engine = opened(placed_plan(paged, tmp_path))
    served = Client(client.runner, create_app(engine))
    stack = engine.stacks()["table@cpu"]
    stack.sample.every = 1
    unknown = orjson.dumps({"instances": [{"item": "never seen"}]})
    for _ in range(40):
        assert served.post("/v1/predict", unknown).status_code == 200
    before = paged.encoder.vocabularies["item"].oov_rank
    assert Drift(stack).reorder().rows
    encoder = stack.views.newest.encoder
    assert encoder is not None
    assert encoder.vocabularies["item"].oov_rank != before
    for _ in range(2):
        assert served.post("/v1/predict", unknown).status_code == 200
    assert served.metric("polyrec_oov_lookups_total", feature="item") == 42


def test_a_process_that_fails_ends_although_its_rows_follow_their_popularity() -> None:
    program = (
        "from polyrec.server.tiers.drift import DriftFollower\n"
        "DriftFollower({}, 3600.0, print).begin()\n"
        "raise SystemExit(3)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 3
