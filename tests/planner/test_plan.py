from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyrec.planner.plan import Limits, Plan, PlanError, load_plan, save_plan, single_path_plan
from polyrec.planner.profile import save_profile
from tests.planner.planning import path, placed, profile

PATH = {"name": "table@cpu", "bundle": "table", "runtime": "onnx"}
UNPLANNED = {"path": "table@cpu", "other": "wide@cpu", "value": 0.1, "low": 0.0, "high": 0.2}
HUGE = {"rows": [1], "median_s": [1e308], "tail_s": [1e308]}


def written(folder: Path, content: Any) -> Path:
    file = folder / "plan.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_saved_file_is_loaded_with_bundles_relative_to_the_file(tmp_path: Path) -> None:
    plan = single_path_plan(Path("table"), "table", "onnx")
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded.paths[0].bundle == tmp_path / "table"
    assert loaded.paths[0].name == "table@cpu"
    assert loaded.limits == plan.limits == Limits()


def test_an_absolute_bundle_stays_where_it_is(tmp_path: Path) -> None:
    save_plan(single_path_plan(Path("/models/table"), "table", "torch"), tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").paths[0].bundle == Path("/models/table")


def test_a_plan_file_is_readable_by_people(tmp_path: Path) -> None:
    save_plan(single_path_plan(Path("table"), "table", "onnx"), tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["version"] == 3
    assert written["paths"] == [{**PATH, "device": "cpu", "precision": "fp32"}]
    assert "max_body_bytes" not in written["limits"]
    assert written["limits"]["max_request_rows"] == 4096


def test_an_older_plan_is_read_and_one_of_the_future_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    limits = {"max_body_bytes": 2**24, "max_request_rows": 4096}
    file.write_text(json.dumps({"version": 1, "paths": [PATH], "limits": limits}))
    assert load_plan(file).limits.max_body_bytes == 2**24
    older = {"paths": [{**PATH, "accuracy": 0.9}], "expected": {"correct_per_s": 3.0}}
    file.write_text(json.dumps({"version": 2, **older}))
    assert (load_plan(file).paths[0].quality, load_plan(file).expected) == (None, None)
    file.write_text(json.dumps({"version": 4, "paths": [PATH]}))
    with pytest.raises(PlanError, match="version 4 is of a newer Polyrec, this one reads 1 to 3"):
        load_plan(file)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ([], "must be an object, not list"),
        ({}, "paths: Field required"),
        ({"paths": []}, "paths: "),
        ({"paths": [PATH], "budget": 3}, "budget: unknown key; known: version, paths, "),
        ({"paths": [PATH], "version": 4}, "version 4 is of a newer"),
        ({"paths": [PATH, PATH]}, "path 'table@cpu' is planned twice"),
        ({"paths": [{**PATH, "runtime": "tpu"}]}, "paths['table@cpu'].runtime: "),
        ({"paths": [{**PATH, "name": "a b"}]}, "paths['a b'].name: "),
        ({"paths": [PATH], "default_budget_ms": 0}, "default_budget_ms: "),
        ({"paths": [PATH], "limits": {"max_queued_rows": 1}}, "the largest request could never be queued"),
        ({"paths": [PATH], "limits": {"max_batch_rows": 10**9}}, "limits.max_batch_rows: "),
        ({"paths": [PATH], "limits": {"max_request_rows": 10**9}}, "limits.max_request_rows: "),
        ({"paths": [PATH], "default_budget_ms": 1e308}, "default_budget_ms: "),
        ({"paths": [PATH], "routing": {"query_s": 1e308}}, "routing.query_s: "),
        ({"paths": [PATH], "lanes": [{"name": "a", "cores": [10**30]}]}, "lanes['a'].cores.0: "),
        ({"paths": [{**PATH, "latency": HUGE}]}, "paths['table@cpu'].latency.median_s.0: "),
        (
            {"paths": [PATH], "routing": {"weights": {"table@cpu": 0}}},
            "no path would answer: the weight of 'tab",
        ),
        (
            {"paths": [PATH], "routing": {"weights": {"table@cpu": 5e-324}}},
            "weights.table@cpu: 4.94066e-324 is neither 0, which disables a path, nor in [1e-09, 1e+09]",
        ),
        ({"paths": [PATH], "routing": {"weights": {"table@cpu": 1e308}}}, "1e+308 is neither 0"),
        ({"paths": [{**PATH, "quality": "high"}]}, "paths['table@cpu'].quality: "),
        ({"paths": [PATH], "differences": [UNPLANNED]}, "differences name path 'wide@cpu', which is not"),
        (
            {
                "paths": [PATH, {**PATH, "name": "b@cpu"}],
                "routing": {"policy": "static:b@cpu", "weights": {"b@cpu": 0}},
            },
            "no path would answer: the weight of 'b@cpu' is 0",
        ),
        (f'{{"version": {"1" * 5000}}}', "is not JSON"),
        (" " * 2**22 + "{", "it has more than 4194304 bytes"),
        ({"paths": [PATH] * 257}, "paths: Tuple should have at most 256 items"),
        ({"paths": [PATH], "lanes": [{"name": "a"}] * 257}, "lanes: Tuple should have at most 256 items"),
    ],
)
def test_a_bad_plan_gives_one_line_that_names_file_and_key(tmp_path: Path, content: Any, says: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(PlanError) as error:
        load_plan(file)
    line = str(error.value)
    assert str(file) in line
    assert says in line
    assert "\n" not in line


def test_a_missing_plan_and_a_folder_raise(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no plan file"):
        load_plan(tmp_path / "nothing.json")
    with pytest.raises(PlanError, match="cannot read plan"):
        load_plan(tmp_path)


def test_a_runtime_that_does_not_exist_is_rejected() -> None:
    with pytest.raises(PlanError, match="runtime"):
        single_path_plan(Path("table"), "table", "tpu")


def test_a_plan_is_frozen() -> None:
    plan = Plan.model_validate({"paths": [PATH]})
    with pytest.raises(ValueError, match="frozen"):
        plan.default_budget_ms = 3  # type: ignore[misc]


def test_a_dense_precision_stands_in_the_paths_name() -> None:
    path = single_path_plan(Path("b"), "table-int8", "onnx", precision="int8").paths[0]
    assert (path.name, path.precision) == ("table-int8.int8@cpu", "int8")


def test_a_placements_folder_is_relative_to_the_plan_and_its_store_must_be_named(tmp_path: Path) -> None:
    plan = single_path_plan(Path("table"), "table", "onnx").model_dump(mode="json")
    placed = {"path": "table@cpu", "tables": {"item": {"host": 2, "remote": 3}}}
    plan["placement"] = {"paths": [placed], "directory": "pages", "remote": {"url": "redis://store:6379"}}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    placement = load_plan(file).placement
    assert placement is not None
    assert placement.directory == tmp_path / "pages"
    assert placement.paths[0].rows("remote") == 3
    del plan["placement"]["remote"]
    file.write_text(json.dumps(plan))
    with pytest.raises(PlanError, match=r"path 'table@cpu' has remote rows, but no `remote` store is named"):
        load_plan(file)
    plan["placement"]["paths"] *= 2
    plan["placement"]["remote"] = {}
    file.write_text(json.dumps(plan))
    with pytest.raises(PlanError, match="path 'table@cpu' is placed twice"):
        load_plan(file)


@pytest.mark.parametrize(
    ("limits", "default_ms", "max_ms"),
    [({}, 100.0, 10_000.0), ({}, 5000.0, 50_000.0), ({"max_budget_ms": 250.0}, 100.0, 250.0)],
)
def test_the_cap_on_budgets_follows_the_default_budget(
    limits: dict[str, Any], default_ms: float, max_ms: float
) -> None:
    plan = Plan.model_validate({"paths": [PATH], "limits": limits})
    assert plan.max_budget_ms(default_ms) == max_ms


def test_a_placement_in_the_devices_own_memory_needs_no_tiers() -> None:
    cpu, gpu = (single_path_plan(Path("b"), "table", "torch", device) for device in ("cpu", "cuda:0"))
    assert not cpu.in_tiers
    assert not placed(cpu, host=9).in_tiers
    assert placed(cpu, host=8, disk=1).in_tiers
    assert not placed(gpu, device=9).in_tiers
    assert placed(gpu, device=8, host=1).in_tiers


def test_a_profile_in_place_of_a_plan_is_named(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    save_profile(profile(path("table@cpu", quality=0.8)), file)
    with pytest.raises(
        PlanError, match="it is a profile, of which `polyrec plan --profile FILE` makes a plan"
    ):
        load_plan(file)
