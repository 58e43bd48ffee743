from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.deployment.proposal import propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.plan import save_plan
from polyrec.planner.profile import save_profile
from tests.planner.planning import path, profile, traffic

MADE = profile(path("table@cpu"))


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def test_a_bundle_shows_its_tables(bundle_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "hottest 1% / 5% / 10%" in shown([str(bundle_dir)], capsys)


def test_nested_widths_are_shown_with_their_cost(nested: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    said = shown([str(nested.path)], capsys)
    assert "width 8 (nested 4, 8)" in said
    assert re.search(r"table.w4  0.0\d\d MFLOP a row, [\d,]+ bytes of dense net", said)


def test_a_profile_shows_its_machine_and_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.json"
    save_profile(MADE, file)
    text = shown([str(file)], capsys)
    assert text.startswith("machine made\n")
    assert "table@cpu" in text
    assert json.loads(shown([str(file), "--json"], capsys))["machine"]["name"] == "made"


def test_a_plan_shows_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.json"
    save_plan(propose(MADE, Requirements(0.01, traffic(10)), [None]).plan, file)
    assert shown([str(file)], capsys).startswith("Plan for machine 'made'")
    assert json.loads(shown([str(file), "--json"], capsys))["default_budget_ms"] == 10


def test_a_machine_shows_its_devices(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[4] / "planner" / "machines" / "mprec-large.yaml"
    assert "a GPU with 32 GB" in shown([str(file)], capsys)


@pytest.mark.parametrize("content", ["{", "[]", '{"paths": []}', '{"machine": 1}'])
def test_a_file_of_another_kind_is_an_error_of_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    assert main(["inspect", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(file) in said


def test_a_vocabulary_needs_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_profile(MADE, tmp_path / "p.json")
    assert main(["inspect", str(tmp_path / "p.json"), "--vocabulary", "item"]) == 2
    assert "--vocabulary needs the folder of a bundle" in capsys.readouterr().err
