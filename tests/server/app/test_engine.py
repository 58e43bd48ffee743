from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import BundleError, RuntimeUnavailable
from polyrec.models.runtimes import open_runtime
from polyrec.planner.plan import Plan, PlanError, PlannedLane, PlannedPath, Routing, single_path_plan
from polyrec.planner.routing.latency.latency_table import LatencyTable
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.app.opening import MEASURED_ROUNDS, MEASURED_ROWS, model_of_shortest
from polyrec.server.clock import clock
from polyrec.server.errors import NotReady


def test_an_engine_is_not_ready_before_it_has_loaded() -> None:
    engine = Engine()
    assert engine.state is LifecycleState.LOADING
    with pytest.raises(NotReady, match="still loading"):
        _ = engine.serving
    with pytest.raises(NotReady, match="still loading"):
        _ = engine.plan


def test_every_path_of_a_plan_answers_alike(bundle_dir: Path, bundle: Bundle, plan: Plan) -> None:
    second = PlannedPath(name="table-onnx@cpu", bundle=bundle_dir, runtime="onnx")
    engine = Engine()
    both = plan.model_copy(update={"paths": (*plan.paths, second)})
    engine.load(both, {bundle_dir: bundle})
    assert engine.state is LifecycleState.READY
    serving = engine.serving
    assert [p.name for p in serving.paths] == ["table@cpu", "table-onnx@cpu"]
    assert serving.bundle is bundle

    async def run() -> None:
        rows = serving.json_decoder.predict(b'{"instances": [{"item": "1"}, {}]}')
        answers = []
        for name in ("table@cpu", "table-onnx@cpu"):
            engine.set_routing(Routing(policy=f"static:{name}"))
            answer = await serving.dispatcher.submit(rows, clock(), 60).payload.answer
            assert serving.paths[answer.path].name == name
            assert answer.reason is None
            answers.append(answer.probabilities)
        np.testing.assert_allclose(*answers, atol=1e-5)

    asyncio.run(run())
    engine.close()
    with pytest.raises(NotReady, match="no longer served"):
        _ = engine.serving


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_nested_widths_are_paths_of_one_bundle(kind: str, nested: Bundle) -> None:
    plan = Plan.model_validate(
        {
            "paths": [
                {"name": f"table.w{w}@cpu", "bundle": nested.path, "runtime": "onnx", "width": w}
                for w in nested.widths
            ],
            "lanes": [{"name": "cpu", "kind": kind}],
        }
    )
    engine = Engine()
    engine.load(plan)
    previous = engine.serving.loaded_plan
    engine.load(previous.plan, previous.bundles)  # as a rollback does
    serving = engine.serving
    assert [p.bundle.width for p in serving.paths] == [4, 8]
    assert len({id(p.bundle.rows) for p in serving.paths}) == 1

    async def run() -> None:
        rows = serving.json_decoder.predict(b'{"instances": [{"item": "1"}, {}]}')
        batch = rows.encode(nested.encoder)
        for path in serving.paths:
            engine.set_routing(Routing(policy=f"static:{path.name}"))
            answer = await serving.dispatcher.submit(rows, clock(), 60).payload.answer
            expected = open_runtime("onnx", nested.at_width(path.planned.width)).predict(batch)
            np.testing.assert_allclose(answer.probabilities, expected, rtol=0, atol=1e-6)

    asyncio.run(run())
    engine.close()


def test_another_plan_takes_over_and_the_old_one_ends_when_it_is_idle(
    bundle_dir: Path, bundle: Bundle, plan: Plan
) -> None:
    async def run() -> None:
        engine = Engine()
        engine.load(plan, {bundle_dir: bundle})
        old = engine.serving
        waiting = old.dispatcher.submit(old.json_decoder.predict(b'{"instances": [{}]}'), clock(), 60)
        engine.load(plan, {bundle_dir: bundle})
        assert engine.serving is not old
        assert engine.previous is not None
        assert engine.previous.plan == plan
        assert (await waiting.payload.answer).probabilities.shape == (1,)
        while old.lanes[0].alive:
            await asyncio.sleep(0.001)
        engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
def test_a_generation_that_no_rollback_needs_is_freed_without_the_garbage_collector(
    kind: str, plan: Plan
) -> None:
    """The collector ignores what existed when the server, or an unload, called gc.freeze."""
    lane = PlannedLane.model_validate({"name": "cpu.0", "device": "cpu", "kind": kind})
    plan = plan.model_copy(update={"lanes": (lane,)})

    async def run() -> None:
        engine = Engine()
        engine.load(plan)
        engine.attach()
        first = engine.serving
        rows = first.json_decoder.predict(b'{"instances": [{}]}')
        await first.dispatcher.submit(rows, clock(), 60).payload.answer
        parts = (first.bundle.files, first.dispatcher, first.dispatcher.router, first.lanes[0])
        kept = [weakref.ref(part) for part in parts]
        del first, parts
        for _ in range(2):
            engine.load(plan)
        while engine._retiring:
            await asyncio.sleep(0.001)
        assert [part() for part in kept] == [None] * 4
        engine.close()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_a_plan_that_cannot_be_opened_leaves_what_is_served(
    plan: Plan, tmp_path: Path, bundle_dir: Path
) -> None:
    engine = Engine()
    engine.load(plan)
    served = engine.serving
    named = "path 'table@cpu': no bundle at .*; a plan's bundles are relative to its own folder"
    with pytest.raises(BundleError, match=named):
        engine.load(single_path_plan(tmp_path, "table", "torch"))
    with pytest.raises(RuntimeUnavailable):
        engine.load(single_path_plan(bundle_dir, "table", "torch", "abacus"))
    assert engine.serving is served
    assert engine.plan == plan
    engine.close()


def test_bundles_of_two_calibrations_are_no_plan(plan: Plan, recalibrated_dir: Path) -> None:
    other = plan.paths[0].model_copy(update={"name": "other@cpu", "bundle": recalibrated_dir})
    engine = Engine()
    says = f"bundles of paths '{plan.paths[0].name}' and 'other@cpu' have different vocabularies; train both"
    with pytest.raises(PlanError, match=says):
        engine.load(plan.model_copy(update={"paths": (*plan.paths, other)}))
    engine.close()


def test_a_server_told_to_stop_while_it_loads_does_not_become_ready(plan: Plan) -> None:
    engine = Engine()
    engine.enter(LifecycleState.DRAINING)
    engine.load(plan)
    assert engine.state is LifecycleState.DRAINING
    engine.close()


def test_one_change_at_a_time_and_none_once_closed(plan: Plan) -> None:
    engine = Engine()

    async def run() -> None:
        with pytest.raises(NotReady, match="still loading"):
            async with engine.changing():
                pass
        engine.load(plan)
        async with engine.changing():
            with pytest.raises(NotReady, match="another plan is being opened"):
                async with engine.changing():
                    pass
        engine.close()
        with pytest.raises(NotReady, match="no longer served"):
            async with engine.changing():
                pass

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_as_large_after_a_start_on_a_busy_machine(seed: int) -> None:
    random = np.random.default_rng(seed)
    alone_s = 4e-4 + 1e-5 * np.array(MEASURED_ROWS)
    took_s = np.tile(alone_s, (MEASURED_ROUNDS, 1))
    for of_size in took_s.T:
        disturbed = random.choice(MEASURED_ROUNDS, 3 * MEASURED_ROUNDS // 4, replace=False)
        of_size[disturbed] *= random.uniform(1, 10, disturbed.size)
    model = model_of_shortest(took_s)
    assert model.median_s == pytest.approx(alone_s)
    usual = LatencyTable(model_of_shortest(alone_s[None]), 4096).efficient_rows
    assert LatencyTable(model, 4096).efficient_rows == usual


def test_without_a_profile_a_batch_may_take_most_of_the_time_left() -> None:
    table = LatencyTable(model_of_shortest(np.array([[0.2e-3, 0.3e-3, 1.5e-3, 12e-3]])), 1024)
    assert table.max_rows_at_tail(0.004) > 0.75 * table.max_rows_at_median(0.004)
