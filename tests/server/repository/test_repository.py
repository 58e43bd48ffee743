from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrec.planner.plan import single_path_plan
from polyrec.planner.routing.sharing.machine_time import ModelShare
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.errors import NotFound, NotReady
from polyrec.server.repository.repository import ModelRepository


@pytest.fixture
def models(bundle_dir: Path, shop_dir: Path) -> Iterator[ModelRepository]:
    """Two that have loaded."""
    first = Engine("hotels")
    models = ModelRepository((first, Engine("shop", sibling=first)))
    for engine, folder in zip(models.engines, (bundle_dir, shop_dir), strict=True):
        engine.load(single_path_plan(folder, "table", "torch"))
    yield models
    models.close()


def test_models_are_found_by_name_version_and_the_first_by_the_alias(models: ModelRepository) -> None:
    hotels, shop = models.engines
    assert models.names == ("hotels", "shop")
    assert models.find("hotels") is models.find("dlrm") is models.default is hotels
    model = shop.serving.model
    assert models.find("shop", model.number) is models.find("shop", model.version) is shop
    with pytest.raises(NotFound, match="unknown model 'x'; this server has 'hotels', 'shop'"):
        models.find("x")
    with pytest.raises(NotFound, match=f"model 'shop' has no version '1'; it serves '{model.number}'"):
        models.find("shop", "1")


def test_nothing_is_found_before_it_has_loaded() -> None:
    models = ModelRepository((Engine(),))
    with pytest.raises(NotReady):
        models.find("x")
    assert models.names == ("dlrm",)


def test_the_state_is_the_servers_and_readiness_needs_every_model(models: ModelRepository) -> None:
    assert models.why_unready() is None
    shop = models.engines[1]
    shop.close()
    assert models.why_unready() == "model 'shop': no plan is in service"
    models.enter(LifecycleState.DRAINING)
    assert shop.state is LifecycleState.DRAINING
    assert models.why_unready() == "the server is draining"


def test_a_new_generation_shares_lane_time_in_place_of_the_one_before(
    bundle_dir: Path, shop_dir: Path
) -> None:
    first = Engine("hotels")
    models = ModelRepository((first, Engine("shop", sibling=first)))
    shares = {"hotels": ModelShare(), "shop": ModelShare(guaranteed=0.3)}
    models.share_time(frozenset({0}), lambda name: shares[name])
    for engine, folder in zip(models.engines, (bundle_dir, shop_dir), strict=True):
        engine.load(single_path_plan(folder, "table", "torch"))
    hotels, shop = (engine.serving.dispatcher for engine in models.engines)
    assert hotels.sharing is not None
    assert shop.sharing is not None
    assert [sharing.guaranteed for sharing in (hotels.sharing, shop.sharing)] == [0.7, 0.3]
    # inline lanes are in one event loop
    assert hotels.sharing.pools == shop.sharing.pools != [None]
    models.engines[1].load(single_path_plan(shop_dir, "table", "torch"))
    renewed = models.engines[1].serving.dispatcher
    assert shop.sharing is None
    assert renewed.sharing is not None
    assert renewed.sharing.guaranteed == 0.3
    assert hotels.sharing.pools == renewed.sharing.pools
    models.close()
