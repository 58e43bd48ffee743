"""Updates of rows that a plan has all in memory, which takes a stack of one tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import F32
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from tests.server.conftest import Client, Request, administered
from tests.server.placing import ALLOWED, placed_plan


@pytest.fixture
def updatable(client: Client) -> Iterator[Callable[[Plan], Client]]:
    """A client of an engine of that plan, opened as `polyrec serve --updates` does."""
    engines: list[Engine] = []

    def ask(plan: Plan) -> Client:
        engine = Engine()
        engine.update_store.in_memory = True
        engine.load(plan)
        engines.append(engine)
        return administered(client, engine)

    yield ask
    for engine in engines:
        engine.close()


def in_memory(bundle: Bundle, directory: Path, lane: str) -> Plan:
    """A plan without a placement."""
    return placed_plan(bundle, directory, lane=lane).model_copy(update={"placement": None})


def set_items(client: Client, bundle: Bundle, value: float) -> Any:
    """Sets all rows of the item table; returns the answer."""
    rows = bundle.encoder.vocabularies["item"].rows
    update = {"tables": {"item": {"ids": list(range(rows)), "rows": [[value] * 64] * rows}}}
    return client.post("/v1/admin/embeddings", orjson.dumps(update), ALLOWED).json()


@pytest.mark.parametrize("lane", ["inline", "thread", "process"])
def test_rows_in_memory_are_updated_as_those_in_tiers(
    lane: str,
    updatable: Callable[[Plan], Client],
    client_of: Callable[[Plan], Client],
    paged: Bundle,
    request_: Request,
    whole: Callable[[Request], F32],
    tmp_path: Path,
) -> None:
    flat = updatable(in_memory(paged, tmp_path, lane))
    given = flat.predict(request_)["predictions"]
    np.testing.assert_allclose(np.array(given, np.float32), whole(request_), rtol=0, atol=1e-6)
    rows = paged.encoder.vocabularies["item"].rows
    assert set_items(flat, paged, 0.25) == {"path": "table@cpu", "rows": rows}
    tiered = client_of(placed_plan(paged, tmp_path))
    set_items(tiered, paged, 0.25)
    after = flat.predict(request_)["predictions"]
    assert after != given
    assert after == pytest.approx(tiered.predict(request_)["predictions"], abs=1e-6)


def test_a_plan_for_a_missing_device_is_refused_and_the_old_one_answers(
    updatable: Callable[[Plan], Client], paged: Bundle, request_: Request, tmp_path: Path
) -> None:
    served = updatable(in_memory(paged, tmp_path, "thread"))
    before = served.predict(request_)["predictions"]
    path = {"name": "table@cuda", "bundle": str(paged.path), "runtime": "torch", "device": "cuda:63"}
    (tmp_path / "plan.json").write_bytes(orjson.dumps({"paths": [path]}))
    named = orjson.dumps({"plan": str(tmp_path / "plan.json")})
    for call in ("reload", "rollout/start"):
        answer = served.post(f"/v1/admin/{call}", named, ALLOWED)
        assert answer.status_code == 422
        assert "torch has no device 'cuda:63'" in answer.text
    assert served.predict(request_)["predictions"] == before


def test_without_being_asked_for_they_are_not(
    client_of: Callable[[Plan], Client], paged: Bundle, tmp_path: Path
) -> None:
    answer = set_items(client_of(in_memory(paged, tmp_path, "thread")), paged, 0.25)
    assert "--updates" in answer["error"]


def test_a_placement_for_slower_memory_stays_as_planned(
    updatable: Callable[[Plan], Client], paged: Bundle, request_: Request, tmp_path: Path
) -> None:
    client = updatable(placed_plan(paged, tmp_path))
    client.predict(request_)
    assert client.metric("polyrec_embedding_lookups_total", tier="disk") > 0
    assert set_items(client, paged, 0.25)["path"] == "table@cpu"
