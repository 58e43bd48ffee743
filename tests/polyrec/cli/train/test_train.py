from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.schema.schema import BUILT_IN
from polyrec.models.training.recipe import load_recipe_file

SMALL = "{architecture: {width: 4, bottom: [8], top: [8], interaction: cat}, recipe: {epochs: 1}}"


def train(monkeypatch: pytest.MonkeyPatch, clicks: Path, folder: Path, *more: str) -> int:
    recipe = folder / "small.yaml"
    recipe.write_text(SMALL)
    given = ("--data", clicks, "--schema", "trivago", "--recipe", recipe, "--out", folder / "table", *more)
    monkeypatch.setattr("sys.argv", ["polyrec", "train", *map(str, given)])
    return main()


def test_the_search_leaves_a_recipe_and_its_log_beside_the_bundle(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(monkeypatch, clicks, tmp_path, "--search", "10m", "--search-candidates", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert {"test", "validation", "constant", "logistic"} <= set(result["metrics"])
    manifest = load_bundle(tmp_path / "table").manifest
    found = load_recipe_file(tmp_path / "table.recipe.yaml")
    assert manifest.training["recipe"] == found.recipe.model_dump(mode="json")
    assert manifest.architecture == found.architecture
    lines = (tmp_path / "table.search.jsonl").read_text().splitlines()
    trials = manifest.training["search"]["trials"]
    assert len(lines) == len(trials) == 6
    assert trials[0]["status"] == "done"


def test_a_search_says_which_recipe_it_chose(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(monkeypatch, clicks, tmp_path, "--search", "10m", "--search-candidates", "1") == 0
    said = "table.recipe.yaml: the base recipe, as no other is shown to be better, chosen from"
    assert said in capsys.readouterr().out


def test_a_model_that_does_not_beat_the_baselines_is_warned_of(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An epoch of one step learns nothing."""
    assert train(monkeypatch, clicks, tmp_path, "--batch-rows", "100000") == 0
    shown = capsys.readouterr()
    assert "warning: the model does not beat the baseline 'logistic' on the test rows: log-loss" in shown.err
    assert [line.split()[0] for line in shown.out.splitlines()[1:4]] == ["test", "constant", "logistic"]


def test_files_of_a_folder_that_are_not_read_are_warned_of(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "days"
    folder.mkdir()
    (folder / "1.parquet").symlink_to(clicks)
    (folder / "2.parq").symlink_to(clicks)
    assert train(monkeypatch, folder, tmp_path) == 0
    said = f"warning: files not named *.parquet are not read, here 1: {folder / '2.parq'}\n"
    assert said in capsys.readouterr().err


def test_lists_that_the_schema_cuts_are_reported_by_feature(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = yaml.safe_load((BUILT_IN / "trivago.yaml").read_text())
    next(f for f in schema["categorical"] if f["name"] == "recent_items")["max_length"] = 1
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(schema))
    short = ("--schema", str(tmp_path / "short.yaml"))
    assert train(monkeypatch, clicks, tmp_path, *short, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    (warning,) = (line for line in result["warnings"] if "max_length" in line)
    assert warning.startswith("feature 'recent_items': ")
    assert result["altered_values"]["training"]["recent_items"]["cut_lists"] > 0
    for command in (("evaluate", tmp_path / "table", "--data", clicks), ("inspect", tmp_path / "table")):
        monkeypatch.setattr("sys.argv", ["polyrec", *map(str, command)])
        assert main() == 0
        shown = capsys.readouterr()
        assert "feature 'recent_items': " in (shown.err if command[0] == "evaluate" else shown.out)


@pytest.mark.parametrize("text", ["10", "10d", "m", "-1s", "infs"])
def test_a_search_takes_a_duration_with_a_unit(
    clicks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
) -> None:
    with pytest.raises(SystemExit) as exit:
        train(monkeypatch, clicks, tmp_path, f"--search={text}")
    assert exit.value.code == 2
    assert f"'{text}' is not a duration like 90s, 10m or 1.5h" in capsys.readouterr().err


def test_a_period_is_streamed_from_a_glob_and_written_into_the_manifest(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    glob = clicks.with_name("click*.parquet")
    options = ("--since", "20", "--until", "200", "--window", "1000", "--checkpoint", str(tmp_path / "kept"))
    assert train(monkeypatch, glob, tmp_path, *options, "--json") == 0
    assert "logistic" not in json.loads(capsys.readouterr().out)["metrics"]
    training = load_bundle(tmp_path / "table").manifest.training
    assert training["period"] == {"since": "20", "until": "200"}
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--every", "5m"), "--every needs --checkpoint DIR"),
        (("--device", "tpu"), "'tpu' is not a device; use cpu, cuda or cuda:N"),
        (("--device", "cuda:99"), "this machine has no device 'cuda:99'"),
        (("--search", "1m", "--checkpoint", "kept"), "--search cannot be combined with --checkpoint"),
        (("--search", "1m", "--window", "1000"), "--search cannot be combined with --window"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    clicks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    reason: str,
) -> None:
    assert train(monkeypatch, clicks, tmp_path, *options) == 2
    assert reason in capsys.readouterr().err
