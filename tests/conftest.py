"""Fixtures of all tests: a repeatable hypothesis, and the licensed data where a machine has it."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, settings

# before any test module imports onnxruntime itself: switches its telemetry off
import polyrec.models.runtimes  # noqa: F401
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile

ROOT = Path(__file__).parent.parent

# No deadline and no check of speed: machines are shared, and a slow run is no defect. In CI the examples
# are a function of the test alone, so that a red run is red again on the same commit. `make test-long` runs
# property tests again with as many examples as hypothesis takes by default.
settings.register_profile(
    "polyrec",
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.register_profile("thorough", settings.get_profile("polyrec"), max_examples=100)
settings.load_profile("polyrec")

LONGEST = (
    "tests/polyrec/cli/start/test_demo_loop.py",
    "tests/models/training/test_pipeline.py",
    "tests/benchmarks/fleet/test_cluster.py",
    "tests/benchmarks/http/test_soak.py",
    "tests/test_notebooks.py",
    "tests/test_package.py",
    "tests/deploy/test_compose.py",
    "tests/polyrec/cli/start/test_demo.py",
    "tests/polyrec/cli/measure/test_bench.py",
    "tests/polyrec/cli/plan/test_plan.py",
    "tests/server/repository/test_loader.py",
    "tests/planner/simulation/test_preview.py",
    "tests/planner/simulation/test_near_paths.py",
    "tests/server/http/docs/test_schemathesis.py",
    "tests/polyrec/loop/test_canary.py",
    "tests/server/rollout/test_control.py",
    "tests/server/prediction_log/test_log.py",
    "tests/server/rollout/test_failures.py",
    "tests/polyrec/loop/test_loop.py",
    "tests/polyrec/cli/serve/test_loop.py",
    "tests/models/runtimes/test_isolation.py",
    "tests/server/app/test_run.py",
    "tests/server/live_quality/test_live.py",
    "tests/server/app/test_drain.py",
    "tests/loadtest/test_locustfile.py",
    "tests/polyrec/cli/serve/test_rollout.py",
    "tests/server/app/test_processes.py",
    "tests/server/lanes/test_resolving.py",
    "tests/server/lanes/test_process.py",
    "tests/server/grpc/test_rollout.py",
    "tests/polyrec/cli/plan/test_profile.py",
    "tests/polyrec/cli/plan/test_train_plan.py",
    "tests/polyrec/cli/measure/test_open_loop.py",
    "tests/server/tiers/test_plan_tiers.py",
    "tests/server/rollout/test_live_labels.py",
    "tests/server/grpc/test_service.py",
    "tests/server/test_isolation.py",
    "tests/server/test_served_equals_offline.py",
    "tests/server/grpc/test_listener.py",
    "tests/polyrec/cli/serve/test_serve.py",
    "tests/models/training/workers/test_workers.py",
    "tests/server/test_faults.py",
)
"""Files that take more than some 20 s, first those of `make test-long`. They begin first: at the end one
process would have such a file left while the others have nothing to do."""

# A shell starts what it runs in the background with SIGINT ignored. Programs that tests start would inherit
# that, and never end on the Ctrl-C that they are sent.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


STARTED_S = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-limit", type=float, help="seconds after which further tests are skipped (default: none)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what a slow machine has no time for, so that a run with a limit tells what it found."""
    limit_s = item.config.getoption("--time-limit")
    if limit_s is not None and time.monotonic() - STARTED_S > limit_s:
        pytest.skip("this run's --time-limit has passed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from scanning modules and tests, which stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; its licenses keep it out of the repository."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real data is not on this machine: {folder} does not exist")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files of long tests first; tests of CUDA say so on a machine without it, instead of failing."""
    place = {ROOT / name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """As everywhere in Polyrec: parallelism comes from lanes, and idle threads spin."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file of 6,000 generated rows in trivago's shape."""
    return generate(
        tmp_path_factory.mktemp("clicks") / "clicks.parquet", 6000, seed=7, items=300, users=200
    ).path


@pytest.fixture(scope="session")
def bundle_dir(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real bundle, trained on `clicks` in a few seconds; read only."""
    schema = load_schema("trivago")
    training = RecipeFile(
        architecture=Architecture(width=8, bottom=(16,), top=(32,), interaction="dot"),
        recipe=Recipe(
            epochs=1,
            batch_rows=256,
            by_request=False,
            calibrate=False,
            sparse_lr=0.05,
            final_lr=0.0,
            hide=0.5,
            hide_from_rows=100,
            average=0.0,
            checks_per_epoch=4,
        ),
    )
    learner = Learner(open_data(clicks, schema), schema, training)
    return learner.learn(tmp_path_factory.mktemp("bundles") / "table").path


@pytest.fixture(scope="session")
def bundle(bundle_dir: Path) -> Bundle:
    """`bundle_dir`, loaded."""
    return load_bundle(bundle_dir)


@pytest.fixture(scope="session")
def nested(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small bundle of nested widths 4 and 8, trained on `clicks` in a few seconds; read only."""
    schema = load_schema("trivago")
    training = RecipeFile(
        architecture=Architecture(width=8, widths=(4, 8), bottom=(16,), top=(32,)),
        recipe=Recipe(epochs=1, batch_rows=256, hide=0.5, hide_from_rows=100, sparse_lr=0.2),
    )
    learner = Learner(open_data(clicks, schema), schema, training)
    return learner.learn(tmp_path_factory.mktemp("nested") / "table")


@pytest.fixture(scope="session")
def wide_dir(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors and a net of random numbers, its products large enough to be executed in int8; read only."""
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    representation = Representation()
    stage = initial_stage(representation, schema, vocabularies, width=8, seed=5, spread=0.5)
    torch.manual_seed(5)
    net = DenseNet(
        Architecture(width=8, bottom=(64,), top=(512, 128), interaction="dot"),
        dense_slots(schema),
        stage.slots,
    )
    out = tmp_path_factory.mktemp("wide") / "table"
    return write_bundle(out, DLRM(stage, net), representation, bundle.encoder, {}, {}).path


@pytest.fixture(scope="session")
def recalibrated_dir(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bundle`, but two ids of users have each other's value, as from another calibration; read only."""
    encoder, users = bundle.encoder, bundle.encoder.vocabularies["user_id"]
    assert users.values is not None
    values = users.values.take(pa.array([1, 0, *range(2, users.size)]))
    vocabularies = {**encoder.vocabularies, "user_id": replace(users, values=values)}
    other = Encoder(encoder.schema, vocabularies, encoder.standards)
    out = tmp_path_factory.mktemp("recalibrated") / "table"
    return write_bundle(out, bundle.model(), bundle.manifest.representation, other, {}, {}).path


@pytest.fixture(scope="session")
def shop_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of random weights for another schema, its features and ids those of no other bundle here."""
    schema = Schema.model_validate(
        {
            "name": "shop",
            "dense": [{"name": "weight"}],
            "categorical": [{"name": "buyer", "role": "context"}, {"name": "fruit"}],
            "label": {"column": "bought"},
            "split": {"rule": "hash", "columns": ["buyer"]},
        }
    )
    values = {"buyer": [f"b{i}" for i in range(20)], "fruit": ["apple", "pear", "plum", "fig"]}
    vocabularies = {
        name: Vocabulary(
            *(name, "string", len(known), np.arange(len(known) + 2)),
            *(np.zeros(len(known) + 2, np.int64), pa.array(known)),
        )
        for name, known in values.items()
    }
    representation = Representation()
    stage = initial_stage(representation, schema, vocabularies, width=4, seed=5, spread=0.5)
    torch.manual_seed(5)
    net = DenseNet(Architecture(width=4, bottom=(8,), top=(8,)), dense_slots(schema), stage.slots)
    out = tmp_path_factory.mktemp("shop") / "shop"
    return write_bundle(out, DLRM(stage, net), representation, Encoder(schema, vocabularies, {}), {}, {}).path
