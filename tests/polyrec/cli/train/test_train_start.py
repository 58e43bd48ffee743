from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.synthetic.generator import generate


def train(monkeypatch: pytest.MonkeyPatch, *given: object) -> int:
    monkeypatch.setattr("sys.argv", ["polyrec", "train", *map(str, given)])
    return main()


def test_training_goes_on_from_a_bundle_with_its_schema_and_recipe(
    bundle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = generate(tmp_path / "later.parquet", 3000, seed=9, items=400, users=300).path
    out = tmp_path / "new"
    assert (
        train(
            monkeypatch, "--data", later, "--from", bundle_dir, "--out", out, "--forget-unseen", 0, "--json"
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["bundle"] == str(out)
    old, new = load_bundle(bundle_dir).manifest, load_bundle(out).manifest
    assert new.training["from"]["version"] == old.version
    assert new.training["from"]["forget"] == 0
    assert new.training["recipe"] == old.training["recipe"]
    assert (new.schema_, new.architecture) == (old.schema_, old.architecture)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--from", "b", "--calibration", "c"), "the bundle's vocabularies are continued"),
        (("--from", "b", "--representation", "dhe"), "the bundle's representation is kept"),
        (("--from", "b", "--search", "1m"), "--search cannot be combined with --from"),
        (("--schema", "trivago", "--forget-unseen", "3"), "applies to a warm start: add --from BUNDLE"),
        (("--schema", "trivago", "--new-standards"), "--new-standards applies to a warm start"),
        (("--from", "nowhere"), "no bundle at 'nowhere'"),
    ],
)
def test_options_that_contradict_a_warm_start_are_refused(
    clicks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    reason: str,
) -> None:
    assert train(monkeypatch, "--data", clicks, "--out", tmp_path / "new", *options) != 0
    assert reason in capsys.readouterr().err


@pytest.mark.long
def test_several_workers_go_on_from_a_bundle(bundle_dir: Path, tmp_path: Path) -> None:
    """In a process of its own: workers join a group by the environment."""
    later = generate(tmp_path / "later.parquet", 2000, seed=9, items=400, users=300).path
    out = tmp_path / "new"
    options = ("--data", later, "--from", bundle_dir, "--workers", 2, "--out", out)
    options += ("--exchange", "hotline", "--hot-mb", 1, "--follow-popularity")
    command = [sys.executable, "-m", "polyrec", "train", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    new = load_bundle(out)
    assert new.manifest.training["from"]["tables"]["item"]["new"] > 0
    assert new.encoder.standards == load_bundle(bundle_dir).encoder.standards
