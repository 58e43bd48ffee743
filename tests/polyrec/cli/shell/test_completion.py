from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polyrec.cli.main import VERBS, build_parser, main
from polyrec.cli.shell.completion import FILES, FOLDERS, SHELLS

ASK = """
source {script}
COMP_WORDS=({words})
COMP_CWORD={last}
_shtab_polyrec
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of bash."""
    file = tmp_path_factory.mktemp("completion") / "polyrec.bash"
    command = [Path(sys.executable).with_name("polyrec"), "completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    file.write_text(done.stdout)
    return file


def completed(script: Path, *words: str) -> set[str]:
    """Returns what bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in ("polyrec", *words))
    ask = ASK.format(script=script, words=quoted, last=len(words))
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    return {line.strip() for line in done.stdout.splitlines()}


def test_verbs_options_and_choices_are_completed(script: Path) -> None:
    assert set(VERBS) <= completed(script, "")
    assert completed(script, "se") == {"serve"}
    assert {"--tls-cert", "--tls-key", "--tier-directory", "--tokens"} == completed(script, "serve", "--t")
    assert completed(script, "completion", "") >= set(SHELLS)
    assert completed(script, "serve", "--lane", "pro") == {"process"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert [verb for verb in VERBS if verb not in printed] == []
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=printed, text=True, check=True)


def test_names_of_files_are_destinations_of_arguments() -> None:
    destinations = set()
    pending = [build_parser()]
    for parser in pending:
        for action in parser._actions:
            destinations.add(action.dest)
            if isinstance(action.choices, dict):
                pending += action.choices.values()
    assert destinations >= FILES | FOLDERS
