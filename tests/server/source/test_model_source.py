"""Models by URL in a server: which URLs are allowed, and that they serve what their files do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import BundleError, PolyrecError
from polyrec.planner.plan import Plan, PlanError, save_plan, single_path_plan
from polyrec.server.app.engine import Engine
from polyrec.server.app.settings.environment import variables_of
from polyrec.server.app.settings.settings import Settings, SettingsError
from polyrec.server.source.model_source import ModelSource
from tests.forking import start
from tests.models.fetching.web import serving
from tests.server.conftest import Client, administered
from tests.server.placing import ALLOWED, TOKEN

BODY = b'{"instances": [{}]}'


@pytest.fixture
def store(bundle_dir: Path, tmp_path: Path) -> Path:
    """A folder to be served: a plan whose bundles lie beside it and elsewhere."""
    store = tmp_path / "store"
    for name in ("v1/table", "bundles/table"):
        shutil.copytree(bundle_dir, store / name)
    write_plan(store / "v1/plan.json", "table")
    write_plan(store / "v1/elsewhere.json", "../bundles/table")
    return store


def write_plan(file: Path, *bundles: str, **changes: Any) -> None:
    plan = single_path_plan(Path(), "table", "onnx")
    paths = [
        plan.paths[0].model_copy(update={"name": f"p{i}@cpu", "bundle": Path(bundle)})
        for i, bundle in enumerate(bundles)
    ]
    save_plan(plan.model_copy(update={"paths": tuple(paths), **changes}), file)


@pytest.fixture
def web(store: Path) -> Iterator[tuple[str, list[str]]]:
    with serving(store) as found:
        yield found


def source(tmp_path: Path, **given: object) -> ModelSource:
    return ModelSource(Settings.model_validate({"model_cache": tmp_path / "cache", **given}))


def read(made: tuple[Plan, Any]) -> Path:
    plan, bundles = made
    (folder,) = bundles
    assert {path.bundle for path in plan.paths} == {folder}
    return folder


@pytest.fixture
def served(client: Client, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Opens what settings name; gives a client of it."""
    with ExitStack() as closing:

        def serve(**given: object) -> Client:
            engine = Engine()
            closing.callback(engine.close)
            engine.load(*source(tmp_path, **given).read())
            return administered(client, engine)

        yield serve


def test_a_plan_is_served_with_bundles_relative_to_it(
    served: Callable[..., Client], bundle_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "table").symlink_to(bundle_dir)
    save_plan(single_path_plan(Path("table"), "table", "torch"), tmp_path / "plan.json")
    client = served(plan=tmp_path / "plan.json", max_request_rows=7)
    assert client.send("GET", "/v1/plan").json()["limits"]["max_request_rows"] == 7
    assert client.send("GET", "/v1/paths").json()["paths"][0]["runtime"] == "torch"


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_the_requested_runtime_and_lane_are_used(
    served: Callable[..., Client], bundle_dir: Path, runtime: str
) -> None:
    client = served(bundle=bundle_dir, runtime=runtime, lane="thread")
    opened = client.send("GET", "/v1/paths").json()
    assert opened["paths"][0]["runtime"] == runtime
    assert [lane["kind"] for lane in opened["lanes"]] == ["thread"]
    assert client.post("/v1/predict", BODY).status_code == 200


@pytest.mark.parametrize(
    ("given", "lanes"),
    [
        ({}, []),
        ({"lanes": 2}, [("cpu.0", "process"), ("cpu.1", "process")]),
        ({"lane": "inline"}, [("cpu.0", "inline")]),
        ({"lanes": 2, "lane": "thread", "device": "cpu:1"}, [("cpu:1.0", "thread"), ("cpu:1.1", "thread")]),
    ],
)
def test_several_lanes_are_processes_unless_another_kind_is_requested(
    bundle_dir: Path, tmp_path: Path, given: dict[str, Any], lanes: list[tuple[str, str]]
) -> None:
    plan, _ = source(tmp_path, bundle=bundle_dir, runtime="torch", **given).read()
    assert [(lane.name, str(lane.kind)) for lane in plan.lanes or ()] == lanes
    assert {lane.device for lane in plan.lanes or ()} <= {plan.paths[0].name.partition("@")[2]}


@pytest.mark.parametrize(("given", "name"), [({}, "table.w8@cpu"), ({"width": 4}, "table.w4@cpu")])
def test_one_of_nested_widths_is_served(
    served: Callable[..., Client], nested: Bundle, given: dict[str, int], name: str
) -> None:
    client = served(bundle=nested.path, device="cpu", **given)
    (path,) = client.send("GET", "/v1/paths").json()["paths"]
    assert (path["name"], path["width"]) == (name, given.get("width", 8))
    assert client.post("/v1/predict", BODY).json()["path"] == name


def test_a_width_of_a_bundle_that_has_one_is_rejected(bundle_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="has one width, 8, and none nested"):
        source(tmp_path, bundle=bundle_dir, width=4).read()


def test_a_bundle_or_a_plan_is_read_by_url_with_the_settings_applied(
    web: tuple[str, list[str]], tmp_path: Path
) -> None:
    root, asked = web
    of_bundle = source(tmp_path, bundle=f"{root}/v1/table", runtime="torch", default_budget_ms=7).read()
    of_plan = source(tmp_path, plan=f"{root}/v1/plan.json", default_budget_ms=7).read()
    assert read(of_bundle) == read(of_plan)
    assert read(of_plan).parent == tmp_path / "cache"
    assert [made[0].paths[0].runtime for made in (of_bundle, of_plan)] == ["torch", "onnx"]
    assert [made[0].default_budget_ms for made in (of_bundle, of_plan)] == [7, 7]
    assert asked.count("/v1/table/net.safetensors") == 1


def test_a_bundle_that_several_paths_name_is_fetched_once(
    web: tuple[str, list[str]], store: Path, tmp_path: Path
) -> None:
    root, asked = web
    write_plan(store / "v1/two.json", "table", "./table")
    read(source(tmp_path, plan=f"{root}/v1/two.json").read())
    assert asked.count("/v1/table/manifest.json") == 1


def test_bundles_lie_in_the_plans_folder_or_below_a_prefix(
    web: tuple[str, list[str]], store: Path, tmp_path: Path
) -> None:
    root, asked = web
    plan = f"{root}/v1/elsewhere.json"
    with pytest.raises(PlanError, match=f"'{root}/bundles/table' is not in the plan's folder"):
        source(tmp_path, plan=plan).read()
    assert asked == ["/v1/elsewhere.json"]
    read(source(tmp_path, plan=plan, model_urls=f"s3://x,{root}/bundles").read())
    for bundle in (str(store / "bundles/table"), "../../../etc", "..", "."):
        write_plan(store / "v1/bad.json", bundle)
        with pytest.raises(PolyrecError, match=r"path 'p0@cpu'|no bundle at"):
            source(tmp_path, plan=f"{root}/v1/bad.json").read()


def test_a_plan_by_url_names_no_files_of_this_machine(
    web: tuple[str, list[str]], store: Path, tmp_path: Path
) -> None:
    root, _ = web
    raw = json.loads((store / "v1/plan.json").read_text())
    raw["placement"] = {"paths": [], "directory": "/etc"}
    (store / "v1/placed.json").write_text(json.dumps(raw))
    with pytest.raises(PlanError, match="directory: a plan by URL may not name files"):
        source(tmp_path, plan=f"{root}/v1/placed.json").read()


def test_the_store_of_a_plan_by_url_is_the_settings_one(
    web: tuple[str, list[str]], store: Path, tmp_path: Path
) -> None:
    root, _ = web
    raw = json.loads((store / "v1/plan.json").read_text())
    raw["placement"] = {"paths": [], "remote": {"url": "redis://elsewhere", "prefix": "v7:"}}
    (store / "v1/placed.json").write_text(json.dumps(raw))
    given = {"plan": f"{root}/v1/placed.json", "store_password": "s3cret"}
    with pytest.raises(PlanError, match="--store-url"):
        source(tmp_path, **given).read()
    plan, _ = source(tmp_path, **given, store_url="rediss://rows@ours").read()
    assert plan.placement is not None
    assert plan.placement.remote is not None
    assert (plan.placement.remote.url, plan.placement.remote.prefix) == ("rediss://rows@ours", "v7:")


def test_an_admin_call_names_urls_below_a_prefix_only(web: tuple[str, list[str]], tmp_path: Path) -> None:
    root, asked = web
    own = Settings.model_validate({"plan": f"{root}/v1/plan.json"}).plan
    bundles = Settings.model_validate({"bundle": f"{root}/bundles/table"}).bundle
    closed = source(tmp_path, plan=f"{root}/v1/plan.json")
    for place in (None, own):
        read(closed.read_for_admin(None, place))
    asked.clear()
    with pytest.raises(SettingsError, match="--model-urls"):
        closed.read_for_admin(None, bundles)
    assert asked == []
    read(source(tmp_path, plan=f"{root}/v1/plan.json", model_urls=root).read_for_admin(None, bundles))
    named = source(tmp_path, plans=f"a={root}/v1/plan.json,b={root}/bundles/table")
    read(named.read_for_admin("b", None))
    read(named.read_for_admin("b", bundles))
    with pytest.raises(SettingsError, match="--model-urls"):
        named.read_for_admin("a", bundles)


def test_a_model_removed_from_the_folder_is_reported_and_others_can_be_read(
    bundle_dir: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    for name in ("a", "b"):
        shutil.copytree(bundle_dir, models / name)
    named = source(tmp_path, models=models)
    (models / "b").rename(tmp_path / "moved")
    with pytest.raises(SettingsError, match="model 'b' is no longer in the folder --models"):
        named.read_for_admin("b", None)
    assert read(named.read_for_admin("b", tmp_path / "moved")) == tmp_path / "moved"
    shutil.rmtree(models)
    assert read(named.read_for_admin("a", tmp_path / "moved")) == tmp_path / "moved"


def test_a_name_too_long_for_a_file_is_reported_as_one_that_cannot_be_read(
    bundle_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match="cannot read plan 'aaa"):
        source(tmp_path, bundle=bundle_dir).read_for_admin(None, Path("a" * 5000))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bundle": "s3://b/x?token=secret"}, "SCHEME://PLACE/PATH"),
        ({"bundle": "s3://b/plan.json"}, "give it with --plan"),
        ({"plan": "s3://b/x"}, "ends with .json"),
        ({"plans": "a=s3://b//x"}, "no empty parts"),
        ({"bundle": "b", "model_urls": "s3://b/../c"}, "no empty parts"),
    ],
)
def test_settings_refuse_invalid_urls(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Settings.model_validate(given)
    assert "function-plain" not in str(error.value.errors()[0]["loc"])  # type: ignore[attr-defined]


def test_settings_with_urls_survive_as_variables() -> None:
    given = {"bundle": "s3://b/x/", "model_urls": "s3://b,https://h/models/", "model_cache_bytes": 9}
    settings = Settings.model_validate(given)
    variables = {k.removeprefix("POLYREC_").lower(): v for k, v in variables_of(settings).items()}
    assert variables["model_urls"] == "s3://b,https://h/models"
    assert Settings.model_validate(variables) == settings


@pytest.mark.long
def test_a_server_starts_reloads_and_tries_versions_by_url(
    web: tuple[str, list[str]], tmp_path: Path
) -> None:
    root, asked = web
    given = {
        "plan": f"{root}/v1/plan.json",
        "model_cache": tmp_path / "cache",
        "model_urls": f"{root}/bundles",
        "admin_token": TOKEN,
        "drain_grace_s": 0,
        "default_budget_ms": 60_000,
        "processes": 2,
    }
    with start(given) as server, httpx.Client(base_url=server.processes[0], headers=ALLOWED) as http:
        assert asked.count("/v1/table/net.safetensors") == 1
        first = http.post("/v1/predict", content=BODY).json()
        assert first["path"] == "p0@cpu"

        def act(name: str, **body: object) -> httpx.Response:
            return http.post(f"/v1/admin/{name}", json=body, timeout=120)

        assert act("reload").status_code == 200
        for plan in ("http://127.0.0.1:1/x", f"{root}/v1/table", "file:///etc", "s3://b/../c"):
            for call in ("reload", "rollout/start"):
                answer = act(call, plan=plan)
                assert answer.status_code == 422, answer.text
                assert "URL" in answer.text or "--model-urls" in answer.text
        asked.clear()
        assert act("reload", plan=f"{root}/bundles/table").json()["paths"] == ["table@cpu"]
        assert asked == ["/bundles/table/manifest.json"]
        then = http.post("/v1/predict", content=BODY).json()
        assert then["path"] == "table@cpu"
        assert then["predictions"] == pytest.approx(first["predictions"], abs=1e-5)
        assert act("rollout/start", plan=f"{root}/v1/plan.json", share=0.5).status_code == 200
        assert act("rollout/promote").json()["ended"][0]["plan"] == f"{root}/v1/plan.json"
        shutil.rmtree(tmp_path / "cache")
        assert act("rollback").json()["paths"] == ["table@cpu"]
        assert http.post("/v1/predict", content=BODY).status_code == 200


def test_a_url_without_a_bundle_is_named(web: tuple[str, list[str]], tmp_path: Path) -> None:
    root, _ = web
    with pytest.raises(PolyrecError, match=f"^no bundle at '{root}/v2'"):
        source(tmp_path, bundle=f"{root}/v2").read()
