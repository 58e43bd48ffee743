"""Generations of models that share lanes' time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrec.planner.plan import single_path_plan
from polyrec.planner.routing.sharing.machine_time import ModelShare
from polyrec.server.app.engine import Engine
from polyrec.server.repository.repository import ModelRepository

SHARES = {"hotels": ModelShare(), "shop": ModelShare(guaranteed=0.3)}


@pytest.fixture
def models(bundle_dir: Path, shop_dir: Path) -> Iterator[ModelRepository]:
    first = Engine("hotels")
    models = ModelRepository((first, Engine("shop", beside=first)))
    for engine in models.engines:
        engine.model_name = engine.model_name or {0: "hotels", 1: "shop"}[models.engines.index(engine)]
    models.share_time(frozenset({0}), lambda name: SHARES[name])
    for engine, folder in zip(models.engines, (bundle_dir, shop_dir), strict=True):
        engine.load(single_path_plan(folder, "table", "torch"))
    yield models
    models.close()


def test_a_new_generation_takes_the_place_of_the_one_before(models: ModelRepository, shop_dir: Path) -> None:
    hotels, shop = (engine.serving.dispatcher for engine in models.engines)
    assert hotels.turns is not None
    assert shop.turns is not None
    assert [turns.model.guaranteed for turns in (hotels.turns, shop.turns)] == [0.7, 0.3]
    # inline lanes are in one event loop
    assert hotels.turns.model.pools == shop.turns.model.pools != [None]
    models.engines[1].load(single_path_plan(shop_dir, "table", "torch"))
    renewed = models.engines[1].serving.dispatcher
    assert shop.turns is None
    assert renewed.turns is not None
    assert renewed.turns.model.guaranteed == 0.3
    assert hotels.turns.model.pools == renewed.turns.model.pools
