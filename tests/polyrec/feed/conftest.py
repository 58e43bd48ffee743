from __future__ import annotations

from collections.abc import Iterator

import pytest

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.reserve import reserve
from polyrec.planner.plan import save_plan
from polyrec.server.child import ServerProcess
from tests.forking import start
from tests.models.tiers.redis_server import RedisServer
from tests.server.placing import placed_plan

TOKEN = "a token of sixteen and more"


@pytest.fixture(scope="module")
def server(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    model, encoder = reserve(bundle, {"item": 3})
    out = write_bundle(folder / "bundle", model, bundle.manifest.representation, encoder, {}, {})
    save_plan(placed_plan(load_bundle(out.path), folder), folder / "plan.json")
    with start({"plan": folder / "plan.json", "admin_token": TOKEN, "drain_grace_s": 0}) as child:
        yield child


@pytest.fixture(scope="module")
def items(bundle: Bundle) -> list[str]:
    """Values of the item table."""
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    return [str(value) for value in values.to_pylist()]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYREC_ADMIN_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()
