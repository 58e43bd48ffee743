from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from models.batch import Batch
from models.bundle import Bundle
from models.errors import BundleError, RuntimeUnavailable
from planner.plan import Plan, PlannedPath, single_path_plan
from server.engine import Engine, State, warm_up
from server.errors import NotReady
from server.lane import clock


def test_an_engine_is_not_ready_before_it_has_loaded() -> None:
    engine = Engine()
    assert engine.state is State.LOADING
    with pytest.raises(NotReady, match="still loading"):
        engine.choose()
    with pytest.raises(NotReady, match="still loading"):
        _ = engine.plan


def test_a_loaded_engine_answers_by_its_first_path(bundle_dir: Path, bundle: Bundle, plan: Plan) -> None:
    second = PlannedPath(name="table-onnx@cpu", bundle=bundle_dir, runtime="onnx")
    engine = Engine()
    engine.load(plan.model_copy(update={"paths": (*plan.paths, second)}), {bundle_dir: bundle})
    assert engine.state is State.READY
    assert [s.name for s in engine.serving] == ["table@cpu", "table-onnx@cpu"]
    serving = engine.choose()
    assert serving.name == "table@cpu"
    assert serving.bundle is bundle

    async def both() -> None:
        rows = serving.decoder.predict(b'{"instances": [{"item": "1"}, {}]}')
        first, other = [await s.lane.ask(rows, clock(), 60) for s in engine.serving]
        np.testing.assert_allclose(first.probabilities, other.probabilities, atol=1e-5)

    asyncio.run(both())
    engine.close()
    with pytest.raises(NotReady):
        engine.choose()


def test_a_plan_that_cannot_be_opened_leaves_what_is_served(
    plan: Plan, tmp_path: Path, bundle_dir: Path
) -> None:
    engine = Engine()
    engine.load(plan)
    served = engine.choose()
    with pytest.raises(BundleError):
        engine.load(single_path_plan(tmp_path, "table", "torch"))
    with pytest.raises(RuntimeUnavailable):
        engine.load(single_path_plan(bundle_dir, "table", "torch", "abacus"))
    assert engine.choose() is served
    assert engine.plan is plan
    engine.close()


def test_a_server_told_to_stop_while_it_loads_does_not_become_ready(plan: Plan) -> None:
    engine = Engine()
    engine.enter(State.DRAINING)
    engine.load(plan)
    assert engine.state is State.DRAINING
    engine.close()


def test_warming_up_executes_batches_of_both_kinds(bundle: Bundle) -> None:
    seen: list[tuple[int, bool]] = []

    class Watched:
        name, device = "watched", "cpu"

        def predict(self, batch: Batch) -> None:
            seen.append((batch.rows, batch.context_row is not None))

    warm_up(Watched(), bundle.encoder)  # type: ignore[arg-type]
    assert seen == [(1, False), (1, True), (64, False), (64, True)]
