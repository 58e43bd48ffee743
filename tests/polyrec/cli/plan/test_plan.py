from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import load_plan
from polyrec.planner.profile import Front, Profile, load_profile, save_profile
from polyrec.server.app.engine import Engine
from tests.planner.planning import machine, path

TRAFFIC = "rate=200,sizes=lognormal:20"


@pytest.fixture(scope="module")
def profiled(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of one real bundle under two names, beside it a machine description."""
    folder = tmp_path_factory.mktemp("profiled")
    rows = {t: 32 * v.rows for t, v in bundle.encoder.vocabularies.items()}
    paths = tuple(
        path(
            name, bundle=bundle.path, tables=rows, origin="measured", quality=quality, row_s=row_s
        )
        for name, quality, row_s in (("table@cpu", 0.9, 1e-5), ("table.int8@cpu", 0.89, 1e-6))
    )  # fmt: skip
    front = Front(query_s=5e-5, row_s=1e-7)
    save_profile(Profile(machine=machine(disk=True), paths=paths, front=front), folder / "profile.json")
    return folder / "profile.json"


@pytest.mark.long
def test_profile_of_a_busy_machine_gives_a_warning(
    profiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = profiled.with_name("busy.json")
    save_profile(load_profile(profiled).model_copy(update={"cpu_wait": 0.47}), file)
    asked = ["--slo-ms", "50", "--traffic", TRAFFIC, "--out", str(tmp_path / "plan.json")]
    assert main(["plan", "--profile", str(file), *asked]) == 0
    assert "on a busy machine: other work held the core for 47% of the time" in capsys.readouterr().err
    assert main(["plan", "--profile", str(profiled), *asked]) == 0
    assert capsys.readouterr().err == ""


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the one line that a wrong command prints."""
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("polyrec: error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_bundles_of_two_calibrations_are_refused(
    bundle: Bundle, recalibrated_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the server would refuse the plan, even if one path is only in reserve."""
    rows = {t: 32 * v.rows for t, v in bundle.encoder.vocabularies.items()}
    paths = tuple(
        path(name, bundle=folder, tables=rows, origin="measured")
        for name, folder in (("table@cpu", bundle.path), ("other@cpu", recalibrated_dir))
    )
    file, out = tmp_path / "profile.json", tmp_path / "plan.json"
    save_profile(Profile(machine=machine(disk=True), paths=paths), file)
    asked = ["--profile", str(file), "--slo-ms", "50", "--traffic", TRAFFIC]
    for arguments in ([*asked, "--out", str(out)], [*asked, "--sweep", "rate=10,20"]):
        said = error_line(arguments, capsys)
        assert "bundles of paths 'table@cpu' and 'other@cpu' have different vocabularies; train both" in said
    assert not out.exists()


@pytest.mark.long
def test_nested_widths_are_profiled_planned_and_served(nested: Bundle, tmp_path: Path) -> None:
    file, out = tmp_path / "profile.json", tmp_path / "plan.json"
    quick = ["--seconds", "0.15", "--max-rows", "32", "--devices", "cpu", "--no-front"]
    assert main(["profile", str(nested.path), "--out", str(file), *quick]) == 0
    known = {p.path.name: p for p in load_profile(file).paths}
    assert list(known) == ["table.w4@cpu", "table.w4.int8@cpu", "table.w8@cpu", "table.w8.int8@cpu"]
    for p in known.values():
        view = nested.at_width(p.path.width)
        assert p.representation == view.name
        assert p.metrics["auc"] == pytest.approx(view.test_metrics["auc"])
        assert p.memory.tables == known["table.w8@cpu"].memory.tables
    assert (
        main(["plan", "--profile", str(file), "--slo-ms", "50", "--traffic", TRAFFIC, "--out", str(out)]) == 0
    )
    plan = load_plan(out)
    assert {p.width for p in plan.paths} <= {4, 8}
    engine = Engine()
    engine.load(plan)
    assert [(p.name, p.bundle.width) for p in engine.serving.paths] == [(p.name, p.width) for p in plan.paths]
    engine.close()


def test_a_plan_is_made_written_and_explained(
    profiled: Path, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plans" / "plan.json"
    asked = ["--profile", str(profiled), "--slo-ms", "10", "--traffic", TRAFFIC]
    assert main(["plan", *asked, "--out", str(out)]) == 0
    made = capsys.readouterr().out
    assert "Serves 100% of it" in made
    assert "In simulation 99% are in budget up to a steady" in made
    plan = load_plan(out)
    assert plan.paths[0].bundle.resolve() == bundle.path.resolve()
    assert plan.default_budget_ms == 10
    assert plan.routing.query_s == 5e-5
    assert plan.placement is not None
    assert main(["plan", "--explain", str(out)]) == 0
    explained = capsys.readouterr().out
    assert explained.splitlines()[:3] == made.splitlines()[:3]
    assert main(["plan", "--explain", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [p["name"] for p in shown["paths"]] == [p.name for p in plan.paths]
    assert shown["expected"]["slo_ms"] == 10


@pytest.mark.long
def test_a_plan_file_names_relative_bundles_from_where_it_lies(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "table").symlink_to(bundle.path)
    rows = {t: 32 * v.rows for t, v in bundle.encoder.vocabularies.items()}
    one = path("table@cpu", bundle="bundles/table", tables=rows, origin="measured")
    save_profile(Profile(machine=machine(), paths=(one,)), tmp_path / "profile.json")
    monkeypatch.chdir(tmp_path)
    asked = [
        "--profile",
        "profile.json",
        "--slo-ms",
        "10",
        "--traffic",
        TRAFFIC,
        "--out",
        "deep/er/plan.json",
    ]
    assert main(["plan", *asked, "--json"]) == 0
    capsys.readouterr()
    assert load_plan("deep/er/plan.json").paths[0].bundle.resolve() == bundle.path.resolve()


@pytest.mark.long
def test_memory_below_the_bundle_puts_its_colder_rows_on_the_disk(
    profiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--profile", str(profiled), "--slo-ms", "500", "--traffic", "rate=2,sizes=fixed:5"]
    assert main(["plan", *asked, "--memory", "cpu=12kB", "--json"]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    memories = {m["place"]: m for m in plan["placement"]["memories"]}
    assert memories["cpu"]["rows_bytes"] + memories["cpu"]["fixed_bytes"] <= 12_000
    assert any(t["disk"] for t in plan["placement"]["paths"][0]["tables"].values())


def test_a_sweep_is_a_table_a_list_and_a_picture(
    profiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--profile", str(profiled), "--traffic", TRAFFIC]
    sweep = ["--sweep", "slo=0.01,10", "--sweep", "rate=100,9000", "--pictures", str(tmp_path / "drawn")]
    assert main(["plan", *asked, *sweep]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:3] == ["slo", "rate", "rows/s"]
    assert len(table) == 5
    assert (tmp_path / "drawn" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plan", *asked, *sweep, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [p["values"] for p in points][:2] == [{"slo": 0.01, "rate": 100}, {"slo": 0.01, "rate": 9000}]
    assert points[0]["reason"].startswith("no path answers")


@pytest.mark.long
def test_pictures_are_drawn(profiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--profile", str(profiled), "--slo-ms", "10", "--traffic", TRAFFIC]
    assert main(["plan", *asked, "--pictures", str(tmp_path)]) == 0
    capsys.readouterr()
    assert {f.name for f in tmp_path.iterdir()} == {"choice.png", "memory.png"}


def test_a_machine_file_changes_the_machine(
    profiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "made.yaml"
    file.write_text(
        "name: made\ndevices: [{name: cpu, kind: cpu, lanes: 8, memory_bytes: 1GB, price_per_hour: 0.4}]\n"
    )
    asked = ["--profile", str(profiled), "--slo-ms", "10", "--traffic", "rate=9e9,sizes=fixed:20"]
    assert main(["plan", *asked, "--machine", str(file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["lanes"]) == 7
    assert plan["expected"]["cost_per_million"] > 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"--slo-ms": "0.01"}, "no path answers 15 rows (the smallest queries) within 0.01 ms: the fastest"),
        ({"--slo-ms": "-1"}, "--slo-ms -1 must be a positive number"),
        ({"--slo-ms": "nan"}, "--slo-ms nan must be a positive number"),
        ({"--cores": "0"}, "--cores 0 must be at least 1"),
        ({"--swing": "0.5"}, "--swing 0.5 must be at least 1"),
        ({"--traffic": "rate=-5,sizes=mlperf"}, "rate: Input should be greater than 0"),
        ({"--traffic": "400"}, "traffic '400' is neither"),
        ({"--memory": "gpu0=1GB"}, "machine 'made' has no device 'gpu0'; it has cpu"),
        ({"--memory": "cpu=lots"}, "'lots' is not a size"),
        ({"--memory": "cpu=100B"}, "no path that keeps 10 ms fits the memory: the smallest"),
        ({"--sweep": "color=1"}, "unknown key 'color'"),
        ({"--sweep": "slo=1e9"}, "1e9 is more than 3,600,000"),
        ({"--slo-ms": "1e9"}, "--slo-ms 1e+09 is more than an hour"),
        ({"--traffic": "rate=1e300"}, "rate: "),
        ({"--sweep": "slo=5", "--out": "x.json"}, "--sweep makes many plans, --out writes one"),
        ({"--pictures": "/proc/none"}, "cannot make the folder '/proc/none'"),
        ({"--out": "/proc/none/plan.json"}, "cannot write --out '/proc/none/plan.json'"),
        ({"--machine": "cpu8"}, "the profile is of machine 'made', 'cpu8' describes 'cpu8'"),
        ({"--machine": "nowhere.yaml"}, "no machine file 'nowhere.yaml'"),
        ({"--profile": "nowhere.json"}, "no profile 'nowhere.json'; make one"),
    ],
)
def test_a_users_mistake_is_one_line(
    profiled: Path, changes: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"--profile": str(profiled), "--slo-ms": "10", "--traffic": TRAFFIC} | changes
    assert says in error_line([word for pair in asked.items() for word in pair], capsys)


@pytest.mark.parametrize("kind", ["--profile", "--fleet", "--train"])
def test_unwritable_output_is_reported_before_inputs_are_read(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [kind, "nowhere"] + (["--slo-ms", "5", "--traffic", TRAFFIC] if kind == "--profile" else [])
    assert f"--out '{tmp_path}' is a folder; name a file" in error_line(
        [*asked, "--out", str(tmp_path)], capsys
    )


def test_missing_flags_are_named(profiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--profile is missing" in error_line([], capsys)
    assert "--traffic is missing" in error_line(["--profile", str(profiled), "--slo-ms", "5"], capsys)


@pytest.mark.parametrize(("content", "says"), [("{", "is not JSON"), ("{}", "machine: Field required")])
def test_a_malformed_profile_is_one_line(
    content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").write_text(content)
    asked = ["--profile", str(tmp_path / "profile.json"), "--slo-ms", "10", "--traffic", TRAFFIC]
    assert says in error_line(asked, capsys)


def test_a_missing_bundle_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = Profile(machine=machine(), paths=(path("table@cpu", bundle="gone", origin="measured"),))
    save_profile(gone, tmp_path / "profile.json")
    asked = ["--profile", str(tmp_path / "profile.json"), "--slo-ms", "10", "--traffic", TRAFFIC]
    assert "path 'table@cpu' of the profile: no bundle at" in error_line(asked, capsys)


def test_a_rate_beyond_the_machine_is_served_in_part(
    profiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--profile", str(profiled), "--slo-ms", "10", "--traffic", "rate=1e7,sizes=fixed:20"]
    assert main(["plan", *asked]) == 0
    shown = capsys.readouterr().out
    assert "Serves 0." in shown
    assert "Bound by time of" in shown


def test_a_fleet_is_planned_written_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = (path("table@cpu", quality=0.2, row_s=1e-5), path("dhe@cpu", quality=0.21, row_s=5e-5))
    save_profile(Profile(machine=machine(cores=4, price=0.5), paths=paths), tmp_path / "profile.json")
    (tmp_path / "fleet.yaml").write_text(
        "nodes: [{name: cpu4, spot_loss: 0.3}]\n"
        "models: [{name: ads, profiles: {cpu4: profile.json}, slo_ms: 20, sizes: {mean: 20}, "
        "rate: [5000, 400000, 90000]}]\n"
    )
    out = tmp_path / "fleet.json"
    common = ["plan", "--fleet", str(tmp_path / "fleet.yaml")]
    assert main([*common, "--out", str(out), "--pictures", str(tmp_path / "drawn")]) == 0
    assert "per million predictions" in capsys.readouterr().out
    assert (tmp_path / "drawn" / "fleet.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads(out.read_text())
    assert written["models"][0]["served"] == pytest.approx(1.0)
    assert main([*common, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes_by_type"] == written["nodes_by_type"]
    assert "--slo-ms applies to a plan for one machine" in error_line([*common[1:], "--slo-ms", "5"], capsys)
    assert "give one of --fleet and --train" in error_line([*common[1:], "--train", "t.yaml"], capsys)
    assert "would replace the file of --fleet" in error_line([*common[1:], "--out", common[-1]], capsys)
    assert "no fleet file" in error_line(["--fleet", "nowhere.yaml"], capsys)
