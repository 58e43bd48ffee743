from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polyrec.cli import VERBS, build_parser, main


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_an_example_that_its_own_parser_takes(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        build_parser().parse_args([verb, "--help"])
    assert left.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"example: polyrec {verb}" in shown


def test_a_users_mistake_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--bundle", "b", "--plan", "p"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "polyrec: error: give either --bundle DIR or --plan FILE\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["serve", "--colour"], ["serve", "--port", "x"]])
def test_an_unknown_word_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "polyrec" in capsys.readouterr().err


def test_without_a_verb_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "serve" in capsys.readouterr().out


def test_a_reader_that_leaves_early_is_no_error(bundle_dir: Path) -> None:
    command = f"{sys.executable} -m polyrec inspect {bundle_dir} --json | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141)
    assert done.stderr == ""
