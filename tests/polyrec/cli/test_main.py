from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polyrec.cli.main import VERBS, build_parser, main
from polyrec.cli.progress import ProgressBars, StatusLine


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
    assert said.err.startswith("polyrec: error: give either --bundle DIR or --plan FILE, or several")


@pytest.mark.parametrize("flag", ["--bundle", "--plan"])
def test_a_line_end_in_a_files_name_ends_no_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", flag, "a\nb", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "'a\\nb'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "'nonsense'"),
        (["serve", "--a\nb\x1b[2J"], "--a\\nb\\x1b[2J"),
        (["serve", "--colour"], "--colour"),
        (["serve", "--port", "x"], "--port"),
        (["train"], "--data"),
        (["demo", "--seed", "-1"], "-1 is not a whole number from 0"),
        (["evaluate", "b", "--data", "d", "--seed", "-1"], "-1 is not a whole number from 0"),
        (["demo", "--seed", str(2**63)], "is not a whole number from 0"),
        (["train", "--threads", "0"], "0 is not a whole number above 0"),
        (["bench", "--plan", "p", "--seconds", "nan"], "nan is not a positive number"),
    ],
)
def test_an_unknown_verb_or_flag_is_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("polyrec")
    assert says in said
    assert said.count("\n") == 1


def test_an_os_error_is_one_line_that_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "x" * 300]) == 2
    assert capsys.readouterr().err == f"polyrec: error: '{'x' * 300}': File name too long\n"


def test_progress_is_shown_on_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBars() as bars:
        bars.phase("read", 10)(3)
    with StatusLine("bench") as status:
        status.show("the next thing")
    assert capsys.readouterr().err == ""


def test_without_a_verb_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "serve" in capsys.readouterr().out


def test_a_reader_that_leaves_early_is_no_error(bundle_dir: Path) -> None:
    command = f"{sys.executable} -m polyrec inspect {bundle_dir} --json | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_a_full_disk_is_one_line(bundle_dir: Path) -> None:
    command = [sys.executable, "-m", "polyrec", "inspect", str(bundle_dir)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (2, "polyrec: error: No space left on device\n")
