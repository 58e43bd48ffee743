"""Models that come and go while the server answers."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import tritonclient.http as tritonhttp

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.models.fetching.url import ModelUrl
from polyrec.planner.plan import PlannedLane, save_plan, single_path_plan
from polyrec.server.app.engine import Engine
from polyrec.server.app.serving import Serving
from polyrec.server.child import ServerProcess
from polyrec.server.clock import clock
from polyrec.server.live_quality.settings import LiveQualitySettings
from polyrec.server.prediction_log.settings import PredictionLogSettings
from polyrec.server.repository.loader import UNLOADED, ModelLoader
from polyrec.server.repository.repository import ModelRepository
from polyrec.server.repository.settings import ModelFiles
from tests.forking import start
from tests.server.placing import TOKEN
from tests.server.prediction_log.test_log import wait
from tests.server.repository.test_application import ADMIN, FRUIT

MODELS = "/v2/repository/models"


@pytest.fixture(scope="module")
def folder(bundle_dir: Path, shop_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `a` and `b`."""
    made = tmp_path_factory.mktemp("models")
    shutil.copytree(bundle_dir, made / "a")
    shutil.copytree(shop_dir, made / "b")
    return made


@pytest.fixture(scope="module")
def loading(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {
        **{"models": folder, "admin_token": TOKEN, "drain_grace_s": 0, "default_budget_ms": 60_000},
        "prediction_log": tmp_path_factory.mktemp("log"),
    }
    with start(settings) as child:
        yield child


@pytest.fixture
def http(loading: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=loading.url, timeout=90, headers=ADMIN, verify=False) as client:
        yield client


def index(http: httpx.Client) -> dict[str, str]:
    return {m["name"]: m["state"] for m in http.post("/v2/repository/index").json()}


def rank(http: httpx.Client, name: str) -> httpx.Response:
    return http.post(f"/v1/models/{name}/rank", json=FRUIT)


def shares(http: httpx.Client) -> dict[str, float]:
    """Guaranteed shares by model."""
    samples = MetricSamples(http.get("/metrics").text)
    return {
        name: samples.total("polyrec_guaranteed_share", model=name)
        for name in ("a", "b", "c")
        if samples.total("polyrec_guaranteed_share", model=name)
    }


def counts_of_logs(pid: int) -> int:
    """Number of descriptors of the shared counts of prediction logs."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += "polyrec-prediction-log" in os.readlink(descriptor)
    return found


def test_an_unloaded_model_is_gone_and_a_loaded_one_answers_as_before(
    http: httpx.Client, loading: ServerProcess, folder: Path
) -> None:
    before = rank(http, "b").json()
    descriptors = counts_of_logs(loading.process.pid)
    assert shares(http) == {"a": 0.5, "b": 0.5}
    gone = http.post(f"{MODELS}/b/unload")
    assert (gone.status_code, gone.json()["state"]) == (200, "UNAVAILABLE")
    assert index(http) == {"a": "READY", "b": "UNAVAILABLE"}
    assert rank(http, "b").status_code == 404
    maps = Path(f"/proc/{loading.process.pid}/maps").read_text()
    assert str(folder / "a") in maps
    assert str(folder / "b") not in maps
    assert counts_of_logs(loading.process.pid) == descriptors // 2 > 0
    assert http.get("/v2/models/b/ready").status_code == 404
    assert http.post(f"{MODELS}/b/unload").status_code == 404
    assert shares(http) == {"a": 1.0}
    assert http.get("/readyz").status_code == 200
    loaded = http.post(f"{MODELS}/b/load")
    assert (loaded.status_code, loaded.json()["state"]) == (200, "READY")
    assert rank(http, "b").json()["scores"] == before["scores"]
    assert shares(http) == {"a": 0.5, "b": 0.5}


def judges(pid: int) -> int:
    """Number of a server's processes that judge live quality."""
    found = 0
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += b"polyrec.server.live_quality.process" in Path(f"/proc/{child}/cmdline").read_bytes()
    return found


def test_a_model_of_the_start_leaves_neither_memory_nor_judge(folder: Path, tmp_path: Path) -> None:
    settings = {"models": folder, "admin_token": TOKEN, "drain_grace_s": 0}
    judged = {"prediction_log": tmp_path / "log", "live_quality": "measure"}
    with (
        start(settings | judged) as child,
        httpx.Client(base_url=child.url, timeout=90, headers=ADMIN) as http,
    ):
        wait(lambda: judges(child.process.pid) == 2)  # until its command is executed, a child has another
        assert http.post(f"{MODELS}/b/unload").status_code == 200
        assert judges(child.process.pid) == 1
        assert str(folder / "b") not in Path(f"/proc/{child.process.pid}/maps").read_text()


@pytest.mark.parametrize("loaded", ["at the start", "later"])
def test_nothing_watches_the_live_quality_of_an_unloaded_model(
    folder: Path, tmp_path: Path, loaded: str
) -> None:
    """The task of a model of the start went on, kept its memory, and restarted its judge after 60 s."""
    plans = {name: single_path_plan(folder / name, "table", "torch") for name in ("a", "b")}

    def open_model(engine: Engine, unused: object) -> Serving:
        serving = engine.open(plans[engine.name])
        log_settings = PredictionLogSettings(folder=tmp_path / engine.name)
        engine.open_live_quality(LiveQualitySettings(mode="measure"), log_settings, serving)
        engine.open_prediction_log(log_settings, serving)
        return serving

    async def run() -> None:
        first = Engine("a")
        models = ModelRepository((first, Engine("b", sibling=first)))
        files = ModelFiles(by_name={name: folder / name for name in plans}, invalid={})
        loader = ModelLoader(models, lambda: files, open_model, drain_s=60)
        tasks = asyncio.all_tasks()
        for engine in models.engines:
            engine.adopt(open_model(engine, None))
        del engine
        models.attach()
        if loaded == "later":
            await loader.unload("b")
            await loader.load("b")
        unloaded = models.engines[1]
        assert len(asyncio.all_tasks() - tasks) == 2
        assert unloaded.live_quality is not None
        assert unloaded.live_quality.pipe is not None
        judge = unloaded.live_quality.pipe.pid
        kept = [weakref.ref(each) for each in (unloaded, unloaded.live_quality, unloaded.serving.bundle)]
        del unloaded
        await loader.unload("b")
        assert len(asyncio.all_tasks() - tasks) == 1
        assert [each() for each in kept] == [None] * 3
        assert not Path(f"/proc/{judge}").exists()
        assert first.live_quality is not None
        assert first.prediction_log is not None
        first.live_quality.close()
        first.prediction_log.close()
        models.close()

    try:
        asyncio.run(run())
    finally:
        gc.unfreeze()  # an unload freezes what is left


def test_an_unload_waits_for_answers_of_the_plan_before_a_reload(folder: Path) -> None:
    """They were canceled, as only queries of the plan in service were waited for."""
    plan = single_path_plan(folder / "b", "table", "torch")
    lane = PlannedLane(name="cpu.0", device="cpu", kind="process")
    plan = plan.model_copy(update={"lanes": (lane,)})

    async def run() -> None:
        first = Engine("a")
        models = ModelRepository((first, Engine("b", sibling=first)))
        loader = ModelLoader(models, lambda: ModelFiles({}, {}), lambda *_: None, drain_s=60)  # type: ignore
        for engine in models.engines:
            engine.load(plan)
        old = engine.serving
        pid = old.lanes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        waiting = old.dispatcher.submit(old.json_decoder.predict(b'{"instances": [{}]}'), clock(), 60)
        engine.load(plan)
        asyncio.get_running_loop().call_later(0.3, os.kill, pid, signal.SIGCONT)
        await loader.unload("b")
        assert waiting.payload.answer.result().probabilities.shape == (1,)
        models.close()

    try:
        asyncio.run(run())
    finally:
        gc.unfreeze()  # an unload freezes what is left


def test_a_model_that_could_not_be_loaded_can_be_loaded_again(folder: Path, tmp_path: Path) -> None:
    """Its log of updates, which one opener at a time may have, was open when its other log was refused."""
    settings = {"models": folder, "admin_token": TOKEN, "drain_grace_s": 0, "updates": True}
    logs = {"update_log": tmp_path / "updates", "prediction_log": tmp_path / "log"}
    with start(settings | logs) as child, httpx.Client(base_url=child.url, timeout=90, headers=ADMIN) as http:
        assert http.post(f"{MODELS}/b/unload").status_code == 200
        rules = tmp_path / "log" / "b" / "log.json"
        whole = rules.read_bytes()
        rules.write_bytes(whole.replace(b'"shop"', b'"other"'))
        refused = http.post(f"{MODELS}/b/load")
        assert (refused.status_code, "is a log of other features" in refused.text) == (422, True)
        rules.write_bytes(whole)
        loaded = http.post(f"{MODELS}/b/load")
        assert loaded.status_code == 200, loaded.text


@pytest.mark.long
def test_log_lines_name_the_model(folder: Path, tmp_path: Path) -> None:
    """Two models have paths of the same name, and nobody could tell which one a line was about."""
    file = tmp_path / "stderr"
    lanes = (PlannedLane(name="cpu.0", device="cpu", kind="process"),)
    for name in ("a", "b"):
        plan = single_path_plan(folder / name, "table", "onnx")
        save_plan(plan.model_copy(update={"lanes": lanes}), tmp_path / f"{name}.json")
    settings = {"models": tmp_path, "admin_token": TOKEN, "drain_grace_s": 0}
    with (
        file.open("w") as log,
        start(settings | {"log_level": "info"}, stderr=log) as child,
        httpx.Client(base_url=child.url, timeout=90, headers=ADMIN) as http,
    ):
        assert http.post("/v1/models/b/admin/reload", json={}).status_code == 200
        os.kill(http.get("/v1/models/b/paths").json()["lanes"][0]["pid"], signal.SIGKILL)
        wait(lambda: "is back" in file.read_text())
        assert http.post(f"{MODELS}/b/unload").status_code == 200
        assert http.post(f"{MODELS}/b/load").status_code == 200
        # one that is served: its line tells what changed
        path = plan.paths[0].model_copy(update={"quality": 0.875})
        save_plan(plan.model_copy(update={"lanes": lanes, "paths": (path,)}), tmp_path / "b.json")
        assert http.post(f"{MODELS}/b/load").status_code == 200
        assert http.post("/v1/admin/routing", json={}).status_code == 200
    lines = file.read_text().splitlines()
    loading = ("model 'b' is unloaded", "repository unload by", "model 'b' is loaded", "repository load by")
    for part in ("new plan served", "reload by", "is back", *loading):
        assert [line for line in lines if part in line and " model=b" in line], part
    loaded = [line for line in lines if "model 'b' is loaded" in line]
    assert "; quality of the best path: 0.875, was " in loaded[1]
    assert all(" model=a" in line for line in lines if "routing" in line)
    assert " model=" not in next(line for line in lines if "the server has ended" in line)


def test_a_model_that_has_come_into_the_folder_is_loaded_and_a_broken_one_is_not(
    http: httpx.Client, folder: Path
) -> None:
    assert http.post(f"{MODELS}/c/load").status_code == 404
    shutil.copytree(folder / "b", folder / "c")
    assert index(http)["c"] == "UNAVAILABLE"
    assert http.post(f"{MODELS}/c/load").status_code == 200
    assert rank(http, "c").json()["scores"] == rank(http, "b").json()["scores"]
    # loading it again reads its file again; what cannot be opened leaves what is served
    assert http.post(f"{MODELS}/c/load", json={"parameters": {}}).status_code == 200
    manifest = folder / "c" / "manifest.json"
    manifest.write_text("{}")
    refused = http.post(f"{MODELS}/c/load")
    assert (refused.status_code, "the model is not loaded" in refused.text) == (422, True)
    assert rank(http, "c").status_code == 200
    assert http.post(f"{MODELS}/c/unload").status_code == 200
    assert http.post(f"{MODELS}/c/load").status_code == 422
    shutil.rmtree(folder / "c")
    assert index(http) == {"a": "READY", "b": "READY"}


def test_a_slow_folder_of_models_delays_no_other_request() -> None:
    looks = 0
    entered, go_on = threading.Event(), threading.Event()

    def files() -> ModelFiles:
        nonlocal looks
        looks += 1
        entered.set()
        assert go_on.wait(60)
        return ModelFiles({"a": Path("a"), "b": Path("b")}, {})

    def open_model(engine: Engine, file: Path | ModelUrl) -> Serving:
        raise AssertionError("nothing is loaded here")

    async def ask() -> None:
        loader = ModelLoader(ModelRepository([Engine("a")]), files, open_model, 0.0)
        asked = [asyncio.create_task(loader.unloaded()) for _ in range(10)]
        while not entered.is_set():
            await asyncio.sleep(0)  # the event loop goes on although the folder is being read
        go_on.set()
        assert await asyncio.gather(*asked) == [[("b", UNLOADED)]] * 10

    asyncio.run(ask())
    assert looks == 1


def test_a_file_with_an_invalid_name_is_reported_and_the_others_are_loaded(
    http: httpx.Client, folder: Path, loading: ServerProcess
) -> None:
    (folder / "not valid.json").write_text("{}")
    (folder / "b.json").write_text("{}")
    states = {m["name"]: m for m in http.post("/v2/repository/index").json()}
    assert states["not valid.json"]["reason"].startswith("invalid name: 'not valid' is no name of a model")
    assert states["b.json"]["reason"] == "invalid name: model 'b' is given twice"
    assert states["b"]["state"] == "READY"
    assert http.post(f"{MODELS}/b/load").status_code == 200
    assert http.post(f"{MODELS}/not valid/load").status_code == 404
    assert http.post("/v1/models/b/admin/reload").status_code == 200
    for name in ("not valid.json", "b.json"):
        (folder / name).unlink()
    assert index(http) == {"a": "READY", "b": "READY"}


def test_a_model_that_cannot_be_judged_leaves_no_log_open(bundle_dir: Path, tmp_path: Path) -> None:
    models, log = tmp_path / "models", tmp_path / "log"
    shutil.copytree(bundle_dir, models / "a")
    settings = {"models": models, "admin_token": TOKEN, "drain_grace_s": 0, "prediction_log": log}
    with (
        start(settings | {"live_quality": "follow"}) as child,
        httpx.Client(base_url=child.url, timeout=90, headers=ADMIN) as http,
    ):
        open_before = counts_of_logs(child.process.pid)
        path = {"name": "table@cpu", "bundle": str(bundle_dir), "runtime": "torch"}
        (models / "p.json").write_text(json.dumps({"paths": [path], "metric": "auc"}))
        refused = http.post(f"{MODELS}/p/load")
        assert (refused.status_code, "values follow information" in refused.text) == (422, True)
        assert counts_of_logs(child.process.pid) == open_before > 0


def test_refused_loads_and_unloads_give_the_reason(http: httpx.Client, loading: ServerProcess) -> None:
    default = http.post(f"{MODELS}/a/unload")
    assert (default.status_code, "cannot be unloaded" in default.text) == (409, True)
    with httpx.Client(base_url=loading.url) as anonymous:
        assert anonymous.post(f"{MODELS}/b/unload").status_code == 401
    for body in ('{"parameters": {"config": "{}"}}', '{"x": 1}'):
        assert http.post(f"{MODELS}/b/load", content=body).status_code == 422
    assert http.post(f"{MODELS}/b/load", content="{").status_code == 400
    assert index(http) == {"a": "READY", "b": "READY"}


def test_a_triton_client_loads_and_unloads(loading: ServerProcess, http: httpx.Client) -> None:
    triton = tritonhttp.InferenceServerClient(loading.url.removeprefix("http://"))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        triton.unload_model("b", headers=headers)
        assert not triton.is_model_ready("b")
        triton.load_model("b", headers=headers)
        assert triton.is_model_ready("b")
    finally:
        triton.close()


@pytest.mark.long
def test_requests_during_changes_are_answered_or_not_found(loading: ServerProcess) -> None:
    async def run() -> set[int]:
        statuses: set[int] = set()
        done = asyncio.Event()
        async with httpx.AsyncClient(base_url=loading.url, timeout=90, headers=ADMIN) as client:

            async def ask(name: str) -> None:
                while not done.is_set():
                    body = FRUIT if name == "b" else {"context": {}, "candidates": {"item": [1, 2]}}
                    answer = await client.post(f"/v1/models/{name}/rank", json=body)
                    statuses.add(answer.status_code)

            asking = [asyncio.create_task(ask("b")) for _ in range(8)]
            for _ in range(3):
                for action in ("unload", "load"):
                    answer = await client.post(f"{MODELS}/b/{action}")
                    assert answer.status_code == 200, answer.text
            done.set()
            await asyncio.gather(*asking)
        return statuses

    assert asyncio.run(run()) <= {200, 404, 503}


def test_a_rollout_a_load_and_an_unload_at_once_exclude_each_other(
    loading: ServerProcess, folder: Path
) -> None:
    """A load beside a rollout's start closed what the rollout took for stable, and requests hung."""

    async def run() -> None:
        async with httpx.AsyncClient(base_url=loading.url, timeout=300, headers=ADMIN) as client:

            async def post(page: str, **body: object) -> int:
                return (await client.post(page, json=body)).status_code

            at_once = [
                post(f"{MODELS}/b/load"),
                post("/v1/models/b/admin/rollout/start", plan=str(folder / "b"), share=0.5),
                post("/v1/models/b/admin/reload"),
            ]
            assert {*await asyncio.gather(*at_once)} <= {200, 409, 503}
            assert {await post("/v1/models/b/rank", **FRUIT) for _ in range(10)} == {200}
            await post("/v1/models/b/admin/rollout/rollback")
            unload = post(f"{MODELS}/b/unload")
            reload = post("/v1/models/b/admin/reload")
            assert {*await asyncio.gather(reload, unload)} <= {200, 404, 503}
            assert await post(f"{MODELS}/b/load") == 200
            assert await post("/v1/models/b/rank", **FRUIT) == 200

    asyncio.run(run())
