from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from polyrec.cli.extras import MODULES, NEEDS, require_extras
from polyrec.cli.main import VERBS

ROOT = Path(__file__).parents[3]


def test_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in MODULES.items():
        assert {Requirement(line).name for line in extras[extra]} == set(modules)
    assert NEEDS.keys() <= VERBS.keys()
    assert {extra for extras in NEEDS.values() for extra in extras} <= MODULES.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_an_installation_with_all_extras_runs_every_verb(verb: str) -> None:
    require_extras(verb)


@pytest.mark.parametrize(
    ("verb", "missing", "extras"), [("train", "tqdm", "train"), ("demo", "scipy and tqdm", "plan,train")]
)
def test_a_missing_extra_is_one_line_with_the_command_that_installs_it(
    verb: str, missing: str, extras: str
) -> None:
    needed = ["--data", "clicks.parquet", "--out", "table"] if verb == "train" else []
    # an interpreter that sees the checkout and the standard library, and no installed packages
    command = [sys.executable, "-S", "-m", "polyrec", verb, *needed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"polyrec: error: 'polyrec {verb}' needs {missing}, not installed here: "
        f"pip install 'polyrec[{extras}]'\n"
    )
