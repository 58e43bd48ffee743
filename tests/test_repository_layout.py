"""Tests of the repository as a whole: layout, pinned versions, the command line's imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from benchmarks import readability
from polyrec.cli.main import VERBS, build_parser, module_of
from tests.conftest import LONGEST

ROOT = Path(__file__).parent.parent
OLDEST = "3.11.2"
"""Python of Debian 12."""
HEAVY = {"fastapi", "locust", "numpy", "onnxruntime", "pyarrow", "pydantic", "starlette", "torch", "uvicorn"}
HELP = """
import sys
from polyrec.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_imports_nothing_heavy_and_no_other_verb(arguments: list[str]) -> None:
    command = [sys.executable, "-c", HELP, *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("usage: ")
    imported = set(shown.stderr.split())
    assert HEAVY & imported == set()
    assert [verb for verb in VERBS if module_of(verb) in imported] == [v for v in arguments if v in VERBS]


def test_tried_set_pins_every_dependency_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tried = [Requirement(line) for line in lines if not line.startswith("#")]
    pins = {canonicalize_name(pin.name): pin.specifier for pin in tried}
    for line in chain(project["dependencies"], *project["optional-dependencies"].values()):
        requirement = Requirement(line)
        (pin,) = pins[canonicalize_name(requirement.name)]
        assert pin.operator == "=="
        assert pin.version in requirement.specifier, line


def test_tried_set_can_be_installed_on_the_oldest_python() -> None:
    """On Debian 12 `make setup` found no versions that fit."""
    pinned = [line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    needed = {d.name: d.metadata["Requires-Python"] for d in distributions() if d.name in pinned}
    assert len(needed) > 150
    assert {name for name, python in needed.items() if python and OLDEST not in SpecifierSet(python)} == set()


def test_container_starts_the_server_with_arguments_that_it_takes() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    program, defaults = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", dockerfile, re.MULTILINE)
    assert json.loads(program) == ["polyrec"]
    assert build_parser().parse_args(json.loads(defaults)).verb == "serve"


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    return readability.modules(ROOT)


def test_no_folder_has_more_than_15_modules(files: dict[str, Path]) -> None:
    assert {f: n for f, n in readability.folder_sizes(files).items() if n > 15} == {}


def test_no_public_class_name_stands_twice_in_a_top_level_folder(files: dict[str, Path]) -> None:
    assert readability.duplicate_classes(files) == {}


def test_no_modules_import_each_other(files: dict[str, Path]) -> None:
    assert readability.import_cycles(files) == []


def test_tests_mirror_the_source_folders(files: dict[str, Path]) -> None:
    assert readability.unmirrored_tests(files) == []


def test_the_files_that_begin_first_exist() -> None:
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []


def test_docstrings_begin_with_what_the_thing_does_or_is(files: dict[str, Path]) -> None:
    assert readability.relative_docstrings(files) == []


def test_readme_and_pages_are_short() -> None:
    words = readability.words(ROOT)
    assert words.pop("README.md") <= 800
    # references, read by looking up: metrics are generated, the protocol has every endpoint
    references = {"docs/metrics.md", "docs/protocol.md", "docs/findings.md"}
    assert {page: n for page, n in words.items() if n > 1200 and page not in references} == {}
